"""nixlAgentConfig: what the caller asks of an agent."""

import datetime
import operator
from typing import Any

from .enums import DEFAULT_COMM_PORT, nixl_thread_sync_t
from .native import Native


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


# Of each field: what it takes, and what it is at first.
_FIELDS: dict[str, tuple[Any, Any]] = {
    "useProgThread": (_Flag(), False),
    "useListenThread": (_Flag(), False),
    "listenPort": (_Integer(2**16 - 1), DEFAULT_COMM_PORT),
    "syncMode": (_Instance(nixl_thread_sync_t), nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE),
    "captureTelemetry": (_Flag(), False),
    "pthrDelay": (_Integer(2**64 - 1), 0),
    "lthrDelay": (_Integer(2**64 - 1), 100_000),
    "etcdWatchTimeout": (_Instance(datetime.timedelta), datetime.timedelta(seconds=5)),
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


def _field(name: str) -> property:
    def get(self: "nixlAgentConfig") -> Any:
        return self._kvx_values[name]

    def put(self: "nixlAgentConfig", value: Any) -> None:
        self._kvx_values[name] = _FIELDS[name][0].check(value)

    return property(get, put)


class nixlAgentConfig(Native):
    """kvxfer has its own threads, and is always safe to call from any: of these only
    ``useListenThread``, ``listenPort`` and ``captureTelemetry`` change something."""

    __slots__ = ("_kvx_values",)

    useProgThread = _field("useProgThread")
    useListenThread = _field("useListenThread")
    listenPort = _field("listenPort")
    syncMode = _field("syncMode")
    captureTelemetry = _field("captureTelemetry")
    pthrDelay = _field("pthrDelay")
    lthrDelay = _field("lthrDelay")
    etcdWatchTimeout = _field("etcdWatchTimeout")

    def __init__(self, *values: Any) -> None:
        if len(values) > len(_POSITIONS):
            raise TypeError(f"{len(values)} values; expected at most {len(_POSITIONS)}")
        self._kvx_values = {name: first for name, (_, first) in _FIELDS.items()}
        for name, value in zip(_POSITIONS, values):
            if name:
                self._kvx_values[name] = _FIELDS[name][0].check(value)
        Native.__init__(self)
