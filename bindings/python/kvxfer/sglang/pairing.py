"""Where the bytes of a request go from one rank of prefill to one of decode, computed once when they
meet. What cannot be moved rightly is refused by name, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import kvxfer
from kvxfer.sglang.heads import HeadRange, head_range, writes_aux
from kvxfer.sglang.layout import Entry, Layout, State

Ids = npt.NDArray[np.int64]

_AS_ONE_TP = "use the same --tp-size (and --dp-size with --enable-dp-attention) on both sides"


class Refused(ValueError):
    """Why this pair of ranks cannot do it, and what to do."""


@dataclass(frozen=True)
class Copies:
    """Of equal items in pairs of buffers."""

    local: list[kvxfer.PagedRegion]
    remote: list[kvxfer.PagedRegion]
    pieces: int = 1
    """In how many an item is cut: one for each token where only some of its heads are moved."""

    def ids(self, items: Ids) -> Ids:
        """Of the pieces of these items."""
        if self.pieces == 1:
            return items
        return (items[:, None] * self.pieces + np.arange(self.pieces)).ravel()


@dataclass(frozen=True)
class Plan:
    remote: Layout
    kv: Copies | None
    """None: another rank of prefill writes all of it."""
    aux: Copies | None
    states: tuple[Copies | None, ...]


def plan_of(
    local: Layout, remote: Layout, total_heads: int, hybrid_mla: bool, swa_layout: str | None
) -> Plan:
    """``total_heads``: of the model; 0: not known. ``hybrid_mla``: some layers are MLA."""
    _check_same(local, remote)
    unlike = local.tp_size != remote.tp_size
    if unlike and hybrid_mla:
        raise Refused(
            f"MLA beside other states with prefill's TP size {local.tp_size} and decode's "
            f"{remote.tp_size}: {_AS_ONE_TP}"
        )
    heads: HeadRange | None = None
    all_here = True  # whether this rank writes for the other, where all of them have the same
    if unlike and not local.mla:
        heads = _heads(local, remote, total_heads)
        all_here = heads is not None
    kv = None
    if all_here:
        kv = _copies("the KV cache", local.kv, remote.kv, heads, local, remote, total_heads)
    states = tuple(
        _state(ours, theirs, local, remote, heads, total_heads, swa_layout)
        for ours, theirs in zip(local.states, remote.states, strict=True)
    )
    aux = None
    if writes_aux(local.tp_rank, local.tp_size, remote.tp_size):
        aux = _copies("the metadata buffers", local.aux, remote.aux, None, local, remote, 0)
    return Plan(remote, kv, aux, states)


def _check_same(local: Layout, remote: Layout) -> None:
    for what, ours, theirs, option in (
        ("tokens in a page", local.page_tokens, remote.page_tokens, "--page-size"),
        ("dtype of the KV cache", local.dtype, remote.dtype, "--kv-cache-dtype"),
        ("kind of attention (MLA)", local.mla, remote.mla, "--model-path"),
        (
            "states beside K and V",
            [state.kind for state in local.states],
            [state.kind for state in remote.states],
            "--model-path",
        ),
        (
            "number of metadata buffers",
            len(local.aux),
            len(remote.aux),
            "--disaggregation-enable-kv-checksum, SGLANG_ENABLE_DISAGG_SAMPLING_MASK",
        ),
    ):
        if ours != theirs:
            raise Refused(f"{what}: {ours} in prefill, {theirs} in decode: set {option} alike")


def _heads(local: Layout, remote: Layout, total: int) -> HeadRange | None:
    try:
        return head_range(total, local.tp_rank, local.tp_size, remote.tp_rank, remote.tp_size)
    except ValueError as error:
        raise Refused(
            f"TP size {local.tp_size} in prefill and {remote.tp_size} in decode: {error}: {_AS_ONE_TP}"
        ) from error


def _state(
    ours: State,
    theirs: State,
    local: Layout,
    remote: Layout,
    heads: HeadRange | None,
    total: int,
    swa_layout: str | None,
) -> Copies | None:
    what = f'the state "{ours.kind}"'
    if local.tp_size == remote.tp_size or local.mla:
        return _copies(what, ours.entries, theirs.entries, None, local, remote, total)
    if ours.kind == "swa" and swa_layout == "nhd":
        if heads is None:
            return None
        return _copies(what, ours.entries, theirs.entries, heads, local, remote, total)
    raise Refused(
        f"{what} with TP size {local.tp_size} in prefill and {remote.tp_size} in decode: {_AS_ONE_TP}"
    )


def _copies(
    what: str,
    ours: tuple[Entry, ...],
    theirs: tuple[Entry, ...],
    heads: HeadRange | None,
    local: Layout,
    remote: Layout,
    total: int,
) -> Copies:
    pairs = _pairs(what, ours, theirs)
    if heads is None:
        for mine, other in pairs:
            if mine.item != other.item:
                raise Refused(
                    f"{what}: items of {mine.item} bytes in prefill, {other.item} in decode: start "
                    "both with the same model, page size, dtype and speculative decoding"
                )
        return Copies([_items(each) for each, _ in pairs], [_items(each) for _, each in pairs])
    tokens = local.page_tokens
    width = max(1, total // local.tp_size), max(1, total // remote.tp_size)
    cut = [(_head_bytes(what, each, tokens, width), each) for each in pairs]
    return Copies(
        [_tokens(mine, tokens, heads.source * head, heads.count * head) for head, (mine, _) in cut],
        [
            _tokens(other, tokens, heads.target * head, heads.count * head)
            for head, (_, other) in cut
        ],
        tokens,
    )


def _pairs(
    what: str, ours: tuple[Entry, ...], theirs: tuple[Entry, ...]
) -> list[tuple[Entry, Entry]]:
    """By layer, where both say the layers: the nth buffer of a layer belongs to the nth."""
    if not all(each.layer >= 0 for each in (*ours, *theirs)):
        if len(ours) != len(theirs):
            raise Refused(
                f"{what}: {len(ours)} buffers in prefill, {len(theirs)} in decode: start both with "
                "the same model and the same speculative decoding"
            )
        return list(zip(ours, theirs, strict=True))
    found = dict(zip(_keys(theirs), theirs, strict=True))
    pairs = []
    for key, mine in zip(_keys(ours), ours, strict=True):
        if key not in found:
            raise Refused(
                f"{what}: decode has no buffer {key[1]} of layer {key[0]}: start both with the same "
                "model and the same speculative decoding"
            )
        pairs.append((mine, found.pop(key)))
    if found:
        raise Refused(
            f"{what}: prefill has nothing for {len(found)} buffers of decode: start both with the "
            "same model and the same speculative decoding"
        )
    return pairs


def _keys(entries: tuple[Entry, ...]) -> list[tuple[int, int]]:
    seen: dict[int, int] = {}
    keys = []
    for entry in entries:
        nth = seen[entry.layer] = seen.get(entry.layer, -1) + 1
        keys.append((entry.layer, nth))
    return keys


def _head_bytes(what: str, pair: tuple[Entry, Entry], tokens: int, heads: tuple[int, int]) -> int:
    mine, other = pair
    head = mine.item // (tokens * heads[0])
    if head == 0 or mine.item != head * tokens * heads[0] or other.item != head * tokens * heads[1]:
        raise Refused(
            f"{what}: pages of {mine.item} bytes in prefill and {other.item} in decode do not hold "
            f"{heads[0]} and {heads[1]} heads of {tokens} tokens: {_AS_ONE_TP}"
        )
    return head


def _items(entry: Entry) -> kvxfer.PagedRegion:
    return kvxfer.PagedRegion(entry.address, entry.item, entry.item, entry.count)


def _tokens(entry: Entry, tokens: int, first: int, length: int) -> kvxfer.PagedRegion:
    """Of each token ``length`` bytes from byte ``first`` on."""
    return kvxfer.PagedRegion(
        entry.address + first, length, entry.item // tokens, entry.count * tokens
    )
