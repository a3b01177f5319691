"""What vLLM does not tell connectors in time: that it forgets what its blocks hold.

``reset_prefix_cache`` fails while blocks are in use, and those of a lease that nobody has read are. Where
vLLM asks the connector at all (``reset_cache``), it does so after that. So the connector looks at it when
vLLM begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager


def before_reset(manager: KVCacheManager, let_go: Callable[[], None]) -> None:
    """From now on ``let_go`` is called before ``manager`` resets the prefix cache."""
    reset = manager.reset_prefix_cache

    def reset_prefix_cache() -> bool:
        let_go()
        return reset()

    manager.reset_prefix_cache = reset_prefix_cache  # type: ignore[method-assign]
