"""How the memory of one rank lies: what SGLang's KVArgs say, as peers are told it. What comes from a
peer is checked field by field before anything is computed with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MAX_ENTRIES = 65_536
_MAX_STATES = 64
_MAX_ADDRESS = 1 << 63


@dataclass(frozen=True)
class Entry:
    """One buffer: items of equal size, one behind the other. An item of the KV cache is a page."""

    address: int
    bytes: int
    item: int
    layer: int = -1
    """-1: not said; buffers then pair by their places."""

    @property
    def count(self) -> int:
        return self.bytes // self.item


@dataclass(frozen=True)
class State:
    """Buffers beside K and V that a request has items of, such as those of Mamba."""

    kind: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Layout:
    tp_rank: int
    tp_size: int
    page_tokens: int
    dtype: str
    mla: bool
    """K and V are one, the same on every rank."""
    kv: tuple[Entry, ...]
    aux: tuple[Entry, ...]
    states: tuple[State, ...]

    def every_entry(self) -> list[Entry]:
        return [*self.kv, *self.aux, *(entry for state in self.states for entry in state.entries)]

    def pages(self) -> int:
        return min((entry.count for entry in self.kv), default=0)


def entries_of(
    addresses: Sequence[int],
    lengths: Sequence[int],
    items: Sequence[int],
    layers: Sequence[int] = (),
) -> tuple[Entry, ...]:
    """ValueError: the lists are of unequal lengths, or a buffer is smaller than one item."""
    numbers = list(layers) if len(layers) == len(addresses) else [-1] * len(addresses)
    return tuple(
        _entry([int(address), int(length), int(item), int(layer)])
        for address, length, item, layer in zip(addresses, lengths, items, numbers, strict=True)
    )


def layout_of(kv_args: Any, tp_rank: int, tp_size: int, mla: bool) -> Layout:
    """Of SGLang's KVArgs."""
    layers = getattr(kv_args, "state_layer_ids", None) or []
    states = tuple(
        State(
            str(kind.value),
            entries_of(
                kv_args.state_data_ptrs[index],
                kv_args.state_data_lens[index],
                kv_args.state_item_lens[index],
                layers[index] if index < len(layers) else (),
            ),
        )
        for index, kind in enumerate(kv_args.state_types)
    )
    return Layout(
        tp_rank=tp_rank,
        tp_size=tp_size,
        page_tokens=int(kv_args.page_size),
        dtype=str(kv_args.kv_cache_dtype_str),
        mla=mla,
        kv=entries_of(
            kv_args.kv_data_ptrs,
            kv_args.kv_data_lens,
            kv_args.kv_item_lens,
            getattr(kv_args, "kv_layer_ids", None) or (),
        ),
        aux=entries_of(kv_args.aux_data_ptrs, kv_args.aux_data_lens, kv_args.aux_item_lens),
        states=states,
    )


def to_message(layout: Layout) -> dict[str, Any]:
    return {
        "tp": [layout.tp_rank, layout.tp_size],
        "page": layout.page_tokens,
        "dtype": layout.dtype,
        "mla": layout.mla,
        "kv": _listed(layout.kv),
        "aux": _listed(layout.aux),
        "states": [[state.kind, _listed(state.entries)] for state in layout.states],
    }


def from_message(message: Any) -> Layout:
    """ValueError: it is not as to_message makes it."""
    if not isinstance(message, dict):
        raise ValueError("no layout")
    tp = message.get("tp")
    if not isinstance(tp, list) or len(tp) != 2:
        raise ValueError("a layout without ranks")
    rank, size = (whole(each, 0, 1 << 20) for each in tp)
    if rank >= size:
        raise ValueError(f"rank {rank} of {size}")
    dtype, mla, states = message.get("dtype"), message.get("mla"), message.get("states")
    if not isinstance(dtype, str) or not isinstance(mla, bool) or not isinstance(states, list):
        raise ValueError("a layout that is not whole")
    if len(states) > _MAX_STATES:
        raise ValueError("more states than there can be")
    return Layout(
        tp_rank=rank,
        tp_size=size,
        page_tokens=whole(message.get("page"), 1, 1 << 20),
        dtype=dtype,
        mla=mla,
        kv=_entries(message.get("kv")),
        aux=_entries(message.get("aux")),
        states=tuple(_state(each) for each in states),
    )


def whole(value: Any, least: int, most: int) -> int:
    """ValueError: no integer from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no number from {least} to {most}")
    return value


def _listed(entries: tuple[Entry, ...]) -> list[list[int]]:
    return [[each.address, each.bytes, each.item, each.layer] for each in entries]


def _entries(listed: Any) -> tuple[Entry, ...]:
    if not isinstance(listed, list) or len(listed) > _MAX_ENTRIES:
        raise ValueError("no list of buffers")
    return tuple(_entry(each) for each in listed)


def _entry(numbers: Any) -> Entry:
    if not isinstance(numbers, list) or len(numbers) != 4:
        raise ValueError("no buffer")
    address, length, item, layer = numbers
    entry = Entry(
        whole(address, 1, _MAX_ADDRESS - 1),
        whole(length, 1, _MAX_ADDRESS - 1),
        whole(item, 1, _MAX_ADDRESS - 1),
        whole(layer, -1, 1 << 31),
    )
    if entry.address + entry.bytes > _MAX_ADDRESS or entry.count == 0:
        raise ValueError(f"a buffer of {entry.bytes} bytes with items of {entry.item}")
    return entry


def _state(listed: Any) -> State:
    if not isinstance(listed, list) or len(listed) != 2 or not isinstance(listed[0], str):
        raise ValueError("no state")
    return State(listed[0], _entries(listed[1]))
