"""Which bytes go where, without SGLang: every byte of every rank of decode is written exactly once, and
what cannot be moved rightly, or is not as a peer should say it, is refused by name."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from kvxfer.sglang.heads import head_range, heads_of, writes_aux
from kvxfer.sglang.layout import Entry, Layout, State, from_message, to_message
from kvxfer.sglang.pairing import Copies, Refused, plan_of
from kvxfer.sglang.settings import Settings
from kvxfer.sglang.wire import Part, Want, indices

_HEAD = 16
_TOKENS = 4
_PAGES = 6
_SIZES = (1, 2, 4, 8)


def asked(target: int, sources: int, targets: int) -> range:
    """The ranks of prefill that SGLang lets a rank of decode ask."""
    if sources >= targets:
        each = sources // targets
        return range(target * each, (target + 1) * each)
    source = target // (targets // sources)
    return range(source, source + 1)


@pytest.mark.parametrize(
    ("total", "sources", "targets"), list(itertools.product((1, 2, 4, 8), _SIZES, _SIZES))
)
def test_each_head_is_written_once(total: int, sources: int, targets: int) -> None:
    for target in range(targets):
        written = []
        for source in asked(target, sources, targets):
            part = head_range(total, source, sources, target, targets)
            if part is None:
                continue
            ours, theirs = heads_of(total, source, sources), heads_of(total, target, targets)
            for nth in range(part.count):
                # Expect the same head of the model at both ends.
                assert ours[part.source + nth] == theirs[part.target + nth]
                written.append(theirs[part.target + nth])
        assert sorted(written) == list(heads_of(total, target, targets))
        writers = [
            each for each in asked(target, sources, targets) if writes_aux(each, sources, targets)
        ]
        assert len(writers) == 1


@pytest.mark.parametrize(
    ("total", "sources", "targets"), [(3, 2, 1), (4, 3, 1), (4, 2, 3), (6, 4, 2), (0, 1, 2)]
)
def test_heads_that_do_not_go_evenly(total: int, sources: int, targets: int) -> None:
    with pytest.raises(ValueError, match="evenly|multiple"):
        head_range(total, 0, sources, 0, targets)


def entries(base: int, count: int, item: int, pages: int = _PAGES) -> tuple[Entry, ...]:
    return tuple(Entry(base + nth * 0x10000, item * pages, item) for nth in range(count))


def layout(rank: int, size: int, heads: int = 8, base: int = 0x100000, **changes: Any) -> Layout:
    width = max(1, heads // size)
    made = Layout(
        tp_rank=rank,
        tp_size=size,
        page_tokens=_TOKENS,
        dtype="bf16",
        mla=False,
        kv=entries(base, 4, _TOKENS * width * _HEAD),
        aux=entries(base + 0x80000, 2, 64),
        states=(),
    )
    return dataclasses.replace(made, **changes)


def written(copies: Copies, source: list[int], target: list[int]) -> list[tuple[int, int, int]]:
    """Each piece: from, to, bytes."""
    pieces = []
    pairs = list(zip(copies.ids(indices(source)), copies.ids(indices(target)), strict=True))
    for ours, theirs in zip(copies.local, copies.remote, strict=True):
        assert ours.block_bytes == theirs.block_bytes
        for mine, other in pairs:
            assert mine < ours.count and other < theirs.count
            pieces.append(
                (
                    ours.base + mine * ours.stride,
                    theirs.base + other * theirs.stride,
                    ours.block_bytes,
                )
            )
    return pieces


@pytest.mark.parametrize(
    ("sources", "targets", "heads"), [(2, 1, 8), (1, 2, 8), (4, 2, 2), (1, 1, 8)]
)
def test_each_byte_is_written_once(sources: int, targets: int, heads: int) -> None:
    for target in range(targets):
        there = layout(target, targets, heads, base=0x900000)
        memory: dict[int, int] = {}
        for source in asked(target, sources, targets):
            plan = plan_of(layout(source, sources, heads), there, heads, False, None)
            if plan.kv is None:
                continue
            for _, to, length in written(plan.kv, [0, 5], [3, 1]):
                for byte in range(to, to + length):
                    memory[byte] = memory.get(byte, 0) + 1
        expected = {
            entry.address + page * entry.item + byte
            for entry in there.kv
            for page in (3, 1)
            for byte in range(entry.item)
        }
        assert set(memory) == expected
        assert set(memory.values()) == {1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"page_tokens": 8}, "--page-size"),
        ({"dtype": "fp8"}, "--kv-cache-dtype"),
        ({"mla": True}, "MLA"),
        ({"kv": entries(0x900000, 6, 512)}, "speculative decoding"),
        ({"kv": entries(0x900000, 4, 256)}, "256 in decode"),
        ({"aux": entries(0x980000, 3, 64)}, "--disaggregation-enable-kv-checksum"),
        ({"aux": entries(0x980000, 2, 32)}, "metadata buffers"),
        ({"states": (State("swa", entries(0x990000, 1, 8)),)}, "states beside K and V"),
    ],
)
def test_layouts_that_do_not_fit(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused, match=named):
        plan_of(layout(0, 1), layout(0, 1, base=0x900000, **changes), 8, False, None)


def test_states_of_unlike_ranks() -> None:
    def both(kind: str) -> tuple[Layout, Layout]:
        return (
            layout(0, 2, states=(State(kind, entries(0x190000, 2, _TOKENS * 4 * _HEAD)),)),
            layout(
                0,
                1,
                base=0x900000,
                states=(State(kind, entries(0x990000, 2, _TOKENS * 8 * _HEAD)),),
            ),
        )

    with pytest.raises(Refused, match='"mamba".*--tp-size'):
        plan_of(*both("mamba"), 8, False, None)
    with pytest.raises(Refused, match='"swa".*--tp-size'):
        plan_of(*both("swa"), 8, False, "hnd")
    with pytest.raises(Refused, match="MLA beside other states"):
        plan_of(*both("mamba"), 8, True, None)
    (state,) = plan_of(*both("swa"), 8, False, "nhd").states
    assert state is not None and state.pieces == _TOKENS


def test_buffers_pair_by_layer() -> None:
    def named(base: int, layers: list[int]) -> tuple[Entry, ...]:
        made = entries(base, len(layers), 512)
        return tuple(
            dataclasses.replace(each, layer=at) for each, at in zip(made, layers, strict=True)
        )

    ours = layout(0, 1, kv=named(0x100000, [0, 1, 0, 1]))
    theirs = layout(0, 1, kv=named(0x900000, [1, 0, 1, 0]))
    kv = plan_of(ours, theirs, 8, False, None).kv
    assert kv is not None
    assert [each.base for each in kv.remote] == [theirs.kv[nth].address for nth in (1, 0, 3, 2)]
    for layers in ([0, 1, 0], [0, 2, 0, 2], [0, 1, 0, 1, 9]):
        with pytest.raises(Refused, match="layer|buffers"):
            plan_of(ours, layout(0, 1, kv=named(0x900000, layers)), 8, False, None)


def test_layouts_travel() -> None:
    made = layout(1, 2, states=(State("mamba", entries(0x1000, 2, 24)),))
    assert from_message(to_message(made)) == made


def test_altered_layouts_are_refused() -> None:
    good = to_message(layout(1, 2, states=(State("mamba", entries(0x1000, 2, 24)),)))
    bad: list[Any] = [
        None,
        7,
        [],
        {},
        good | {"tp": [2, 2]},
        good | {"tp": [0]},
        good | {"page": 0},
    ]
    bad += [good | {name: None} for name in good]
    for value in (0, -1, 1 << 63, True, 1.5, "8", None, [8]):
        for at in range(3):
            entry = list(good["kv"][0])
            entry[at] = value
            bad.append(good | {"kv": [entry]})
    bad += [good | {"kv": [[1 << 62, 1 << 62, 8]]}, good | {"kv": [[4096, 8, 16, 0]]}]
    bad += [
        good | {"states": [["mamba"]]},
        good | {"states": [[1, []]]},
        good | {"states": [[]] * 65},
    ]
    for message in bad:
        with pytest.raises(ValueError):
            from_message(message)


def test_wants_travel_within_bounds() -> None:
    there = layout(0, 1, states=(State("mamba", entries(0x1000, 2, 24)),))
    want = Want(5, 77, indices([0, 5]), 3, (indices([2]),), 8, 2, False)
    found = Want.of(want.message(), there)
    assert np.array_equal(found.pages, want.pages) and np.array_equal(
        found.states[0], want.states[0]
    )
    assert dataclasses.replace(found, pages=want.pages, states=want.states) == want
    for wrong in (
        dataclasses.replace(want, pages=indices([6])),
        dataclasses.replace(want, aux=6),
        dataclasses.replace(want, states=()),
        dataclasses.replace(want, states=(indices([6]),)),
    ):
        with pytest.raises(ValueError):
            Want.of(wrong.message(), there)


def test_parts() -> None:
    assert Part.of(Part(1 << 60, 3, 4).encode()) == Part(1 << 60, 3, 4)
    assert Part.of(b"") is None and Part.of(b"x" * 20) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(["SGLANG_KVXFER_PORT_RANGE"], ["0", "x", "9-8", "-5"]),
        *itertools.product(["SGLANG_KVXFER_QUIET_TIMEOUT"], ["0", "x", "-1", "nan", "3601"]),
    ],
)
def test_options_are_refused_by_name(monkeypatch: Any, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        Settings.of(300, 300)


def test_options(monkeypatch: Any) -> None:
    assert Settings.of(300, 200).ports == (0,)
    monkeypatch.setenv("SGLANG_KVXFER_PORT_RANGE", "7000-7002")
    monkeypatch.setenv("SGLANG_KVXFER_QUIET_TIMEOUT", "2.5")
    made = Settings.of(300, 200)
    assert (made.ports, made.quiet_timeout) == ((7000, 7001, 7002), 2.5)
    assert (made.waiting_timeout, made.bootstrap_timeout) == (300, 200)
