"""nixlAgentConfig: what the caller asks of an agent."""

import datetime
import operator
from typing import Any

from .enums import DEFAULT_COMM_PORT, nixl_thread_sync_t


class _Flag:
    def check(self, value: Any) -> bool:
        if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
            raise TypeError(f"{value!r} is not a bool")
        return bool(value)


class _Integer:
    def __init__(self, most: int) -> None:
        self._most = most

    def check(self, value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{value!r} is not an integer") from None
        if not 0 <= number <= self._most:
            raise TypeError(f"{number} is not from 0 to {self._most}")
        return number


class _Instance:
    def __init__(self, kind: type) -> None:
        self._kind = kind

    def check(self, value: Any) -> Any:
        if not isinstance(value, self._kind):
            raise TypeError(f"{value!r} is not a {self._kind.__name__}")
        return value


_FIELDS: dict[str, Any] = {
    "useProgThread": _Flag(),
    "useListenThread": _Flag(),
    "listenPort": _Integer(2**16 - 1),
    "syncMode": _Instance(nixl_thread_sync_t),
    "captureTelemetry": _Flag(),
    "pthrDelay": _Integer(2**64 - 1),
    "lthrDelay": _Integer(2**64 - 1),
    "etcdWatchTimeout": _Instance(datetime.timedelta),
}
# The order of the constructor, in which the fifth is a number of workers that nobody reads.
_POSITIONS = (
    "useProgThread",
    "useListenThread",
    "listenPort",
    "syncMode",
    "",
    "pthrDelay",
    "lthrDelay",
    "captureTelemetry",
)


class nixlAgentConfig:
    """kvxfer has its own threads, and is always safe to call from any: of these only
    ``useListenThread``, ``listenPort`` and ``captureTelemetry`` change something."""

    useProgThread: bool = False
    useListenThread: bool = False
    listenPort: int = DEFAULT_COMM_PORT
    syncMode: nixl_thread_sync_t = nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
    captureTelemetry: bool = False
    pthrDelay: int = 0
    lthrDelay: int = 100_000
    etcdWatchTimeout: datetime.timedelta = datetime.timedelta(seconds=5)

    def __init__(self, *values: Any) -> None:
        if len(values) > len(_POSITIONS):
            raise TypeError(f"{len(values)} values; expected at most {len(_POSITIONS)}")
        for name, value in zip(_POSITIONS, values):
            if name:
                setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(f"nixlAgentConfig has no {name}")
        object.__setattr__(self, name, _FIELDS[name].check(value))
