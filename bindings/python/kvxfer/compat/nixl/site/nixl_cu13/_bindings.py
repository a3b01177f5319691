from kvxfer.compat.nixl import bindings as _bindings
from kvxfer.compat.nixl.bindings import *  # noqa: F403

__all__ = _bindings.__all__
