"""When each transfer was posted, began, notified the target and ended: a lane for each thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from kvxfer.plot import style
from kvxfer.plot.documents import Document, Transfer, sources, tell_apart

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDS = "results with a timeline (kvxfer bench --timeline 64 --json)"

QUEUED = "#F0C27B"
WIRE = style.PALETTE[0]
ANSWER = "#9CCBE8"
NOTIFIED = style.INK
_DUE: dict[str, Any] = {"linestyle": "", "marker": "^", "markersize": 4, "markeredgewidth": 0}


@dataclass(frozen=True)
class Panel:
    """The timeline of one result."""

    name: str
    transfers: tuple[Transfer, ...]
    open_loop: bool  # requests are due at times of their own

    @property
    def lanes(self) -> list[tuple[int, int]]:
        return sorted({(one.peer, one.thread) for one in self.transfers})


@dataclass(frozen=True)
class Panels:
    common: str  # to all
    panels: tuple[Panel, ...]


def data(documents: Sequence[Document], asked: bool) -> Panels | None:
    del asked
    results = [(one, result) for one in documents for result in one.results if result.timeline]
    if not results:
        return None
    common, names = tell_apart([
        {
            **result.traits,
            "block": f"{style.bytes_text(result.block_bytes)} blocks",
            "file": one.name if len(documents) > 1 else "",
        }
        for one, result in results
    ])
    return Panels(common, tuple(
        Panel(name, tuple(result.timeline), open_loop=result.open_loop)
        for name, (_, result) in zip(names, results)
    ))


def draw(found: Panels, documents: Sequence[Document]) -> Figure:
    several = len(found.panels) > 1
    heights, left = [], 0.0
    for panel in found.panels:
        lanes = len(panel.lanes)
        each = 0.34 if lanes <= 12 else 0.2 if lanes <= 40 else 0.12
        names = [_lane_name(panel, lane) for lane in panel.lanes]
        left = max(left, 0.3 + max(style.text_width(name) for name in names))
        heights.append((max(0.5, each * lanes), 0.36 if several else 0.1))
    rooms = [
        style.Room(width=7.6, height=height, left=left, right=0.3, top=top, bottom=0.62)
        for height, top in heights
    ]
    title = f"Transfers in time: {found.common}"
    figure, axes = style.panels(title, [*sources(documents), ""], len(rooms), 1, rooms)
    for axis, panel in zip(axes, found.panels):
        if several:
            axis.set_title(panel.name)
        _draw_lanes(axis, panel)
    _key(figure, len(sources(documents)), found)
    return figure


def _key(figure: Figure, line: int, found: Panels) -> None:
    """In the place of a last note."""
    width, height = figure.get_size_inches()
    marks: list[tuple[Artist, str]] = [
        (Patch(color=QUEUED), "posted, queued"),
        (Patch(color=WIRE), "on the wire"),
        (Line2D([], [], color=NOTIFIED, marker="|", markersize=10, markeredgewidth=1.6,
                linestyle=""), "target notified"),
        (Patch(color=ANSWER), "until the initiator knows"),
    ]
    if any(panel.open_loop for panel in found.panels):
        marks.insert(0, (Line2D([], [], color=style.QUIET, **_DUE), "due"))
    figure.legend(
        [mark for mark, _ in marks], [text for _, text in marks], ncols=len(marks), frameon=False,
        loc="upper left", fontsize=style.LABEL_SIZE, borderpad=0, borderaxespad=0,
        handlelength=1.2, columnspacing=1.6, handletextpad=0.5,
        bbox_to_anchor=(0.15 / width, 1 - (0.39 + 0.19 * line) / height),
    )


def _draw_lanes(axis: Axes, panel: Panel) -> None:
    start = min(one.due if panel.open_loop else one.posted for one in panel.transfers)
    end = max(max(one.ended, one.notified or 0) for one in panel.transfers) - start
    unit, factor = ("s", 1e6) if end >= 2e6 else ("ms", 1e3) if end >= 2e3 else ("µs", 1.0)
    lane_points = 72 * style.inches(axis)[1] / len(panel.lanes)
    for place, lane in enumerate(panel.lanes):
        mine = [one for one in panel.transfers if (one.peer, one.thread) == lane]
        axis.broken_barh([(one.posted - start, one.first_slice - one.posted) for one in mine],
                         (place - 0.32, 0.64), facecolor=QUEUED, linewidth=0)
        # All of it counts as the wire where clocks differ or the target was notified late.
        wire = [max(one.first_slice, min(one.ended, one.notified or one.ended)) for one in mine]
        axis.broken_barh([(one.first_slice - start, end - one.first_slice)
                          for one, end in zip(mine, wire)],
                         (place - 0.32, 0.64), facecolor=WIRE, linewidth=0)
        axis.broken_barh([(end - start, one.ended - end) for one, end in zip(mine, wire)],
                         (place - 0.32, 0.64), facecolor=ANSWER, linewidth=0)
        # Separates a transfer from the one before it, which may have ended at the same moment.
        axis.vlines([one.posted - start for one in mine], place - 0.33, place + 0.33,
                    colors="white", linewidth=0.9)
        notified = [one.notified - start for one in mine if one.notified is not None]
        axis.plot(notified, [place] * len(notified), linestyle="", marker="|", color=NOTIFIED,
                  markersize=0.78 * lane_points, markeredgewidth=1.3,
                  label=_lane_name(panel, lane))
        if panel.open_loop:
            axis.plot([one.due - start for one in mine], [place + 0.42] * len(mine),
                      color=style.QUIET, clip_on=False, **_DUE)
    axis.set_xlim(0, max(end, 1e-3) * 1.01)
    axis.set_ylim(len(panel.lanes) - 0.45, -0.55)
    axis.set_yticks(range(len(panel.lanes)), [_lane_name(panel, lane) for lane in panel.lanes])
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us / factor:.4g} {unit}"))
    axis.set_xlabel(f"time since the first was {'due' if panel.open_loop else 'posted'}")


def _lane_name(panel: Panel, lane: tuple[int, int]) -> str:
    """Numbers as in the document; what all lanes have in common is left out."""
    peer, thread = lane
    peers = len({one for one, _ in panel.lanes}) > 1
    threads = len({one for _, one in panel.lanes}) > 1
    if peers and threads:
        return f"peer {peer} · thread {thread}"
    return f"peer {peer}" if peers else f"thread {thread}"
