"""Bandwidth by block size, beside a raw reference if the document has one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvxfer.plot import style
from kvxfer.plot.documents import Document, sources, tell_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS = "results of workload raw with several block sizes (kvxfer bench --block-sizes 4K:4M --json)"


@dataclass(frozen=True)
class Line:
    """Of one configuration or contestant: GB/s by block size, in bytes."""

    name: str
    kind: str  # of COMPARE_KINDS
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Panel:
    """What is measured on the same work."""

    title: str
    lines: tuple[Line, ...]


def data(documents: Sequence[Document], asked: bool) -> list[Panel]:
    """`asked`: also of a single block size, of which a line has one point."""
    panels = [panel for one in documents for panel in _compared(one)]
    swept = _swept(documents)
    if swept is not None and (asked or any(len(line.points) > 1 for line in swept.lines)):
        panels.insert(0, swept)
    return panels


def _compared(document: Document) -> Iterator[Panel]:
    rows = [row for row in document.rows if not row.round_trip]
    for title in dict.fromkeys(row.title for row in rows):
        lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for row in rows:
            if row.title == title:
                point = (row.block_bytes, row.gb_per_s)
                lines.setdefault((row.contestant, row.kind), []).append(point)
        yield Panel(title, tuple(
            Line(name, kind, tuple(sorted(points))) for (name, kind), points in lines.items()
        ))


def _swept(documents: Sequence[Document]) -> Panel | None:
    """All sweeps of `kvxfer bench`: results that differ in nothing but block size are one line."""
    lines: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    traits: dict[tuple[str, ...], dict[str, str]] = {}
    for document in documents:
        for result in document.results:
            if result.workload != "raw":
                continue
            key = (document.path, *result.traits.values())
            traits[key] = {**result.traits, "file": document.name}
            lines.setdefault(key, []).append((result.block_bytes, result.gb_per_s))
    if not lines:
        return None
    title, names = tell_apart(list(traits.values()))
    return Panel(title, tuple(
        Line(name, "kvxfer", tuple(sorted(points))) for name, points in zip(names, lines.values())
    ))


def draw(found: list[Panel], documents: Sequence[Document]) -> Figure:
    several = len(found) > 1
    label_width = max(
        style.text_width(style.wrapped(_label(line)), weight="bold")
        for panel in found for line in panel.lines
    )
    title_width = max(style.text_width(panel.title, 10, "bold") for panel in found)
    width = 3.3 if several else 5.6
    crowd = max(len(panel.lines) for panel in found)
    room = style.Room(
        width=width,
        height=max(2.7 if several else 3.3, 0.26 * crowd),
        right=max(label_width + 0.45, title_width - width + 0.3 if several else 0),
        top=0.36 if several else 0.16,
    )
    title = "Bandwidth by block size"
    if not several and found[0].title:
        title += f": {found[0].title}"
    figure, axes = style.panels(title, sources(documents), len(found), 2, room)
    colors = style.family_colors(
        line.name for panel in found for line in panel.lines if line.kind == "peer"
    )
    for axis, panel in zip(axes, found):
        if several:
            axis.set_title(panel.title)
        _draw_panel(axis, panel, colors)
    return figure


def _styles(panel: Panel, colors: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Of each line: colour, weight and marks tell what it is, on grey paper too."""
    several = sum(line.kind == "kvxfer" for line in panel.lines) > 1
    ours = 0
    peers: list[str] = []
    for line in panel.lines:
        if line.kind == "raw":
            yield {"color": style.INK, "linewidth": 1.6, "linestyle": (0, (5, 2)), "zorder": 4}
        elif line.kind == "reference":
            yield {"color": "#9CA3AF", "linewidth": 1.1, "linestyle": (0, (1, 1.6)), "zorder": 2}
        elif line.kind == "kvxfer":
            palette = (style.OURS, *style.PALETTE) if several else (style.OURS,)
            yield {"color": palette[ours % len(palette)], "linewidth": 2.4, "zorder": 5,
                   "marker": style.MARKERS[ours % len(style.MARKERS)], "markersize": 5}
            ours += 1
        else:
            family = style.family(line.name)
            pale = min(0.38 * peers.count(family), 0.6)
            peers.append(family)
            yield {"color": style.paler(colors[family], pale), "linewidth": 1.4,
                   "marker": style.MARKERS[len(peers) % len(style.MARKERS)], "markersize": 3.8,
                   "zorder": 3}


def _label(line: Line) -> str:
    return f"{line.name} (raw reference)" if line.kind == "raw" else line.name


def _label_color(line: Line, look: dict[str, Any], colors: dict[str, str]) -> Any:
    """That of the line where it is dark enough to be read."""
    if line.kind == "reference":
        return style.QUIET
    return colors[style.family(line.name)] if line.kind == "peer" else look["color"]


def _draw_panel(axis: Axes, panel: Panel, colors: dict[str, str]) -> None:
    labels = []
    for line, look in zip(panel.lines, _styles(panel, colors)):
        sizes, rates = zip(*line.points)
        axis.plot(sizes, rates, label=line.name, **look)
        labels.append(style.EndLabel(
            x=sizes[-1], y=rates[-1], text=style.wrapped(_label(line)),
            color=_label_color(line, look, colors), line_color=look["color"],
            weight="bold" if line.kind in ("kvxfer", "raw") else "normal",
        ))
    style.size_axis(axis, (size for line in panel.lines for size, _ in line.points))
    axis.set_ylim(0, 1.06 * max(rate for line in panel.lines for _, rate in line.points) or 1)
    axis.set_ylabel("GB/s")
    if len(labels) > 1 or labels[0].text:
        style.end_labels(axis, labels)
