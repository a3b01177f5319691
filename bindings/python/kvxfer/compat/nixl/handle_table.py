"""Numbers that stand for objects, as C++ pointers do in NIXL."""

import itertools
import threading
from typing import Any

from .arguments import to_int
from .errors import nixl_error, nixlInvalidParamError


class HandleTable:
    """Thread-safe. A number is used once."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, thing: Any) -> int:
        with self._lock:
            number = next(self._numbers)
            self._objects[number] = thing
            return number

    def get(self, handle: Any, kind: type) -> Any:
        """nixlInvalidParamError: released, or never given."""
        with self._lock:
            thing = self._objects.get(to_int(handle, "the handle"))
        if not isinstance(thing, kind):
            raise nixl_error(nixlInvalidParamError, f"{handle} is not a handle, or was released")
        return thing

    def drop(self, handle: int) -> None:
        with self._lock:
            self._objects.pop(handle, None)
