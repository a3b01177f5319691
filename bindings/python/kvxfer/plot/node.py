"""Places in a JSON document, read without trust."""

from __future__ import annotations

import json
from typing import Any

from kvxfer._errors import InvalidArgument

_MISSING = object()


class Node:
    """A place in a document; what is asked of it is there and of the right type, or an error."""

    def __init__(self, path: str, where: str, value: Any) -> None:
        self._path, self.where, self.value = path, where, value

    def error(self, what: str, expected: str) -> InvalidArgument:
        place = f"{self._path}: {self.where} " if self.where else f"{self._path}: "
        return InvalidArgument(f"{place}{what}; expected {expected}")

    def has(self, name: str) -> bool:
        return name in self.value

    def at(self, name: str, expected: str) -> Node:
        where = f"{self.where}.{name}" if self.where else name
        node = Node(self._path, where, self.value.get(name, _MISSING))
        if node.value is _MISSING:
            raise node.error("is missing", expected)
        return node

    def _typed(self, name: str, kinds: type | tuple[type, ...], expected: str) -> Any:
        node = self.at(name, expected)
        wrong_bool = isinstance(node.value, bool) and kinds is not bool
        if wrong_bool or not isinstance(node.value, kinds):
            raise node.error(f"is {shown(node.value)}", expected)
        return node.value

    def text(self, name: str) -> str:
        return str(self._typed(name, str, "text"))

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false"))

    def whole(self, name: str, least: int = 0) -> int:
        value = self._typed(name, int, "a whole number")
        if value < least:
            raise self.at(name, "").error(f"is {value}", f"a whole number from {least} on")
        return int(value)

    def number(self, name: str) -> float:
        value = self._typed(name, (int, float), "a number")
        if not 0 <= value < float("inf"):
            raise self.at(name, "").error(f"is {value}", "a number, zero or above")
        return float(value)

    def object(self, name: str) -> Node:
        self._typed(name, dict, "an object")
        return self.at(name, "an object")

    def objects(self, name: str) -> list[Node]:
        """The objects of a list, of which there is at least one."""
        expected = "a list of objects, with one at least"
        items = self._typed(name, list, expected)
        if not items:
            raise self.at(name, expected).error("is empty", expected)
        nodes = [Node(self._path, f"{self.at(name, '').where}[{i}]", item)
                 for i, item in enumerate(items)]
        for node in nodes:
            if not isinstance(node.value, dict):
                raise node.error(f"is {shown(node.value)}", "an object")
        return nodes

    def points(self, name: str) -> list[tuple[float, float]]:
        """A distribution: rising times, and rising parts up to 1."""
        expected = "a list of [microseconds, part of the requests], rising to a part of 1"
        points: list[tuple[float, float]] = []
        for item in self._typed(name, list, expected):
            pair: list[Any] = item if isinstance(item, list) and len(item) == 2 else [None]
            if not all(type(n) in (int, float) and 0 <= n < float("inf") for n in pair):
                raise self.at(name, expected).error(f"has {shown(item)}", expected)
            points.append((float(pair[0]), float(pair[1])))
        parts = [part for _, part in points]
        if not parts or points != sorted(points) or parts != sorted(parts) or parts[-1] != 1:
            raise self.at(name, expected).error("is no distribution", expected)
        return points


def shown(value: Any) -> str:
    """As JSON, cut to what an error can hold."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
