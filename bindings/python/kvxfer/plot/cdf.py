"""The distribution of requests' times, with p50, p90 and p99 marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from kvxfer._errors import InvalidArgument
from kvxfer.plot import style
from kvxfer.plot.documents import BenchResult, Document, sources, tell_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS = "results with latency_cdf (kvxfer bench --json)"
MOST = 16  # curves that one can still tell apart

_MARKED = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Curve:
    name: str
    result: BenchResult


@dataclass(frozen=True)
class Curves:
    common: str  # to all
    curves: tuple[Curve, ...]
    sizes: bool  # they differ in block size alone


def data(documents: Sequence[Document], asked: bool) -> Curves | None:
    results = [(one, result) for one in documents for result in one.results]
    if not results:
        return None
    if len(results) > MOST:
        if not asked:
            return None
        raise InvalidArgument(
            f"{', '.join(one.path for one in documents)}: results are {len(results)}; expected "
            f"{MOST} at most, for no more curves can be told apart"
        )
    traits = [
        {
            **result.traits,
            "block": f"{style.bytes_text(result.block_bytes)} blocks",
            "file": one.name if len(documents) > 1 else "",
        }
        for one, result in results
    ]
    common, names = tell_apart(traits)
    differing = {name for name in traits[0] if len({t[name] for t in traits}) > 1}
    curves = tuple(Curve(name, result) for name, (_, result) in zip(names, results))
    return Curves(common, curves, sizes=differing == {"block"} and len(curves) > 2)


def draw(found: Curves, documents: Sequence[Document]) -> Figure:
    columns = _Columns(found)
    room = style.Room(width=4.9, height=max(3.3, 0.24 * len(found.curves) + 0.6),
                      right=columns.width + 0.3, left=0.85, top=0.16)
    title = f"Latency of requests: {found.common}"
    figure, (axis,) = style.panels(title, sources(documents), 1, 1, room)
    slowest = max(curve.result.cdf[-1][0] for curve in found.curves)
    fastest = max(min(curve.result.cdf[0][0] for curve in found.curves), 1e-3)
    for curve, look in zip(found.curves, _styles(found)):
        times, parts = zip(*curve.result.cdf)
        # No request took less than the first: there the curve rises from zero.
        axis.plot((times[0], *times), (0.0, *parts), drawstyle="steps-post",
                  label=curve.name or found.common, **look)
        axis.plot([curve.result.percentiles[part] for part in _MARKED], _MARKED, linestyle="",
                  marker="o", markersize=5, color=look["color"], markeredgecolor="white",
                  markeredgewidth=0.7, zorder=6, clip_on=False)
    _axes(axis, fastest, slowest, _nines(found))
    if len(found.curves) > 1:
        columns.write(axis, [look["color"] for look in _styles(found)])
    else:
        _mark(axis, found.curves[0].result)
    return figure


def _mark(axis: Axes, result: BenchResult) -> None:
    """What the key says of several curves, at the points of the only one."""
    for part in _MARKED:
        us = result.percentiles[part]
        axis.annotate(f"p{100 * part:.0f} {style.time_text(us)}", xy=(us, part), xytext=(9, -1),
                      textcoords="offset points", va="top", size=style.LABEL_SIZE,
                      weight="bold", color=style.INK, zorder=7)


def _nines(found: Curves) -> int:
    """How far up the axis goes: to the nines that there are requests for."""
    # Of the last point the part is 1: what the slowest requests are of all says the one before.
    before = [curve.result.cdf[-2][1] for curve in found.curves if len(curve.result.cdf) > 1]
    slowest = 1 - max(before, default=0.0)
    return 2 if slowest > 1e-2 else 3 if slowest > 1e-3 else 4


def _styles(found: Curves) -> list[dict[str, Any]]:
    count = len(found.curves)
    if found.sizes:
        # From small to large, from dark to light: what is ordered looks ordered.
        shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.82, count))
        return [{"color": tuple(shade), "linewidth": 1.7} for shade in shades]
    palette = (style.OURS, *style.PALETTE)
    dashes = ("-", (0, (4, 1.5)), (0, (1, 1)))
    return [
        {
            "color": palette[i % len(palette)],
            "linewidth": 1.9,
            "linestyle": dashes[i // len(palette) % len(dashes)],
        }
        for i in range(count)
    ]


def _axes(axis: Axes, fastest: float, slowest: float, nines: int) -> None:
    # Each nine has as much room as the one before: the tail is what one looks for.
    axis.set_yscale("function", functions=(
        lambda part: -np.log10(np.maximum(1 - np.asarray(part, dtype=float), 10.0 ** -(nines + 1))),
        lambda height: 1 - 10.0 ** -np.asarray(height, dtype=float),
    ))
    ticks = [0, 0.5, 0.9, 0.99, 0.999, 0.9999][: nines + 2]
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda part, _: f"{100 * part:.6g} %"))
    axis.set_ylim(0, 1 - 10.0 ** -(nines + 0.35))
    axis.set_ylabel("requests that took at most so long")
    axis.set_xscale("log")
    span = (slowest / fastest) ** 0.04 * 1.02
    axis.set_xlim(fastest / span, slowest * span)
    subs = (1.0,) if slowest / fastest > 1000 else (1.0, 2.0, 5.0)
    axis.xaxis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda us, _: style.tick_text(us)))
    axis.set_xlabel("time of a request")


class _Columns:
    """The key, beside the axes: of each curve its name and its percentiles."""

    _NUMBER = 0.62  # inches
    _LINE = 0.22

    def __init__(self, found: Curves) -> None:
        self._found = found
        self._names = [curve.name for curve in found.curves]
        self._name_width = max(style.text_width(name, weight="bold") for name in self._names)
        self._ends = [
            0.35 + self._name_width + self._NUMBER * (i + 1) for i in range(len(_MARKED))
        ]
        self.width = self._ends[-1] if len(self._names) > 1 else 0.0

    def write(self, axis: Axes, colors: Sequence[Any]) -> None:
        width, height = style.inches(axis)

        def put(x: float, line: int, text: str, **look: Any) -> None:
            axis.text(1 + x / width, 1 - (0.1 + self._LINE * line) / height, text, va="center",
                      transform=axis.transAxes, size=style.LABEL_SIZE, **look)

        for end, part in zip(self._ends, _MARKED):
            put(end, 0, f"p{100 * part:.0f}", color=style.QUIET, ha="right")
        for line, (curve, color) in enumerate(zip(self._found.curves, colors), 1):
            put(0.3, line, curve.name, color=color, weight="bold")
            for end, part in zip(self._ends, _MARKED):
                put(end, line, style.time_text(curve.result.percentiles[part]), color=style.INK,
                    ha="right")
