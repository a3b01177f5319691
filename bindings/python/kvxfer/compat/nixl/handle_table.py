"""Numbers that stand for objects, as C++ pointers do in NIXL."""

import itertools
from typing import Any

from .arguments import to_int
from .errors import nixl_error, nixlInvalidParamError


# Of all agents of the process: what one of them gave is nothing to another.
NUMBERS = itertools.count(1)


class HandleTable:
    """Thread-safe. A number is used once in a process.

    Without a lock, for each step is one atomic step of a dict or of the counter: finalisers of
    handles come here, and the garbage collector runs them in the midst of any other call."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def add(self, thing: Any) -> int:
        number = next(NUMBERS)
        self._objects[number] = thing
        return number

    def get(self, handle: Any, kind: type) -> Any:
        """nixlInvalidParamError: released, or never given."""
        thing = self._objects.get(to_int(handle, "the handle"))
        if not isinstance(thing, kind):
            raise nixl_error(nixlInvalidParamError, f"{handle} is not a handle, or was released")
        return thing

    def drop(self, handle: int) -> None:
        self._objects.pop(handle, None)
