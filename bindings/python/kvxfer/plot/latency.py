"""p50 to p99 of round trips: every contestant of ``benchmarks/compare`` at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvxfer.plot import style
from kvxfer.plot.documents import CompareRow, Document, sources

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS = "round trips of benchmarks/compare (its groups ping-*)"

_COLORS = {"kvxfer": style.OURS, "raw": style.INK, "reference": style.QUIET}
_ROW = 0.27  # inches


def data(documents: Sequence[Document], asked: bool) -> list[list[CompareRow]]:
    """A panel for each group: its rows, best first."""
    del asked
    groups: dict[tuple[str, str], list[CompareRow]] = {}
    for document in documents:
        for row in document.rows:
            if row.round_trip:
                groups.setdefault((document.path, row.title), []).append(row)
    return list(groups.values())


def draw(found: list[list[CompareRow]], documents: Sequence[Document]) -> Figure:
    names = [_name(row) for rows in found for row in rows]
    left = max(style.text_width(name, weight="bold") for name in names) + 0.25
    colors = style.family_colors(
        row.contestant for rows in found for row in rows if row.kind == "peer"
    )
    titles = max(style.text_width(rows[0].title, 10, "bold") for rows in found)
    last = len(found) - 1
    rooms = [
        style.Room(width=4.6, height=_ROW * len(rows), left=left,
                   right=max(1.35, titles - 4.6 + 0.2),
                   bottom=0.16 if i < last else 0.36)
        for i, rows in enumerate(found)
    ]
    figure, axes = style.panels(
        "Round trips: median (dot) to p99 (bar's end)", sources(documents), len(found), 1, rooms
    )
    low = min(row.p50_us for rows in found for row in rows)
    high = max(row.p99_us for rows in found for row in rows)
    for axis, rows in zip(axes, found):
        axis.set_title(rows[0].title)
        # One scale for all: what is far apart looks far apart.
        axis.set_xscale("log")
        axis.set_xlim(low / 1.5, high * 1.5)
        _draw_rows(axis, rows, colors)
        if axis is not axes[-1]:
            axis.tick_params(axis="x", labelbottom=False, length=0)
            axis.spines["bottom"].set_visible(False)
    return figure


def _name(row: CompareRow) -> str:
    return f"{row.contestant} (raw reference)" if row.kind == "raw" else row.contestant


def _draw_rows(axis: Axes, rows: list[CompareRow], peers: dict[str, str]) -> None:
    def color_of(row: CompareRow) -> str:
        return peers[style.family(row.contestant)] if row.kind == "peer" else _COLORS[row.kind]

    ordered = sorted(rows, key=lambda row: row.p50_us)
    for place, row in enumerate(ordered):
        color = color_of(row)
        axis.plot([row.p50_us, row.p99_us], [place, place], color=color, linewidth=3.2,
                  alpha=0.45, solid_capstyle="butt", label=row.contestant)
        axis.plot([row.p50_us], [place], color=color, marker="o", markersize=5.5)
        axis.annotate(
            f"{style.time_text(row.p50_us)} – {style.time_text(row.p99_us)}",
            xy=(1.015, place), xycoords=("axes fraction", "data"), va="center",
            size=style.LABEL_SIZE, color=style.INK, annotation_clip=False,
        )
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), [_name(row) for row in ordered])
    for label, row in zip(axis.get_yticklabels(), ordered):
        label.set_color(color_of(row))
        label.set_fontweight("bold" if row.kind in ("kvxfer", "raw") else "normal")
    axis.xaxis.set_major_locator(LogLocator(base=10))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda us, _: style.tick_text(us)))
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
