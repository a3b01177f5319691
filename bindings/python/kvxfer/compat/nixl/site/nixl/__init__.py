"""NIXL's name for kvxfer.compat.nixl. In this folder, so that only those find it who ask."""

from . import _api, _bindings, _utils, logging
from ._api import *  # noqa: F403
from ._bindings import *  # noqa: F403
from ._utils import *  # noqa: F403
from .logging import get_logger

# Both have one; it is that of the Python interface which nixl_agent_config takes.
nixl_thread_sync_t = _api.nixl_thread_sync_t

__all__ = [*_bindings.__all__, *_api.__all__, *_utils.__all__, "get_logger", "logging"]
