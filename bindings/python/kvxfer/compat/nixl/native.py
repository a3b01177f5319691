"""How NIXL's compiled classes behave where classes written in Python do not.

Programs subclass them, patch them and copy them, and rely on what fails: an attribute that is not
there, a constructor that was not called, an object that cannot be pickled.
"""

from typing import Any


class _NativeType(type):
    def __call__(cls, *args: Any, **named: Any) -> Any:
        made = super().__call__(*args, **named)
        if isinstance(made, Native) and not hasattr(made, "_kvx_made"):
            what = f"{cls.__qualname__}.__init__()"
            raise TypeError(f"{what} must be called when overriding __init__")
        return made


class Native(metaclass=_NativeType):
    """An instance has the attributes of its class alone; one of a program's subclass has a dict.

    Names of the implementation begin with ``_kvx``, for a subclass may use any other."""

    __slots__ = ("_kvx_made", "__weakref__")

    def __init__(self) -> None:
        self._kvx_made = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"cannot pickle '{type(self).__qualname__}' object")
