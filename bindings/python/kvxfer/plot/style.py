"""How all figures look: colours that colour-blind people can tell apart, units, places."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, less its yellow, which paper swallows; in the order in which neighbours
# differ most in brightness too.
PALETTE = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C564B")
OURS = "#D55E00"
INK = "#111111"
QUIET = "#6B7280"
FAINT = "#D1D5DB"
MARKERS = ("o", "s", "^", "D", "v", "P")

RC: Any = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 150,
    "svg.hashsalt": "kvxfer",  # the same data makes the same file
    "pdf.fonttype": 42,
}
LABEL_SIZE = 8.5
_POINTS = 72.0  # to an inch


def bytes_text(count: float) -> str:
    """4096: "4 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count:.4g} B"


def time_text(us: float) -> str:
    """Three figures: "12.3 µs", "1.23 ms"."""
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if us >= factor * 0.9995 or factor == 1.0:
            value = us / factor
            return f"{value:.{2 if value < 10 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError


def tick_text(us: float) -> str:
    """Of a round time: "10 µs"."""
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if us >= factor * 0.9995:
            return f"{us / factor:.4g} {unit}"
    return f"{us * 1e3:.4g} ns"


def text_width(text: str, size: float = LABEL_SIZE, weight: str = "normal") -> float:
    """In inches; of several lines the longest."""
    prop = FontProperties(size=size, weight=weight)
    widths = [
        text_to_path.get_text_width_height_descent(line, prop, False)[0]
        for line in text.splitlines()
    ]
    return float(max(widths, default=0.0)) / _POINTS


@dataclass(frozen=True)
class Room:
    """Of each panel, in inches: its axes, and what lies around them."""

    width: float
    height: float
    left: float = 0.62
    right: float = 0.2
    top: float = 0.36
    bottom: float = 0.5


def panels(
    title: str, notes: Sequence[str], count: int, columns: int, room: Room | Sequence[Room]
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, by line, under a title and what it is of.

    `room`: of all alike, or of each; then there is one column.
    """
    rooms = [room] * count if isinstance(room, Room) else list(room)
    columns = min(columns, count)
    across = rooms[0].left + rooms[0].width + rooms[0].right
    title_height = 0.34 + 0.19 * len(notes)
    width = max(columns * across, text_width(title, 12, "bold") + 0.5)
    width = max([width] + [text_width(note, LABEL_SIZE) + 0.5 for note in notes])
    lines = [rooms[i] for i in range(0, count, columns)]
    height = title_height + sum(r.top + r.height + r.bottom for r in lines)
    figure = Figure(figsize=(width, height))
    figure.text(0.15 / width, 1 - 0.12 / height, title, size=12, weight="bold", va="top",
                color=INK)
    for i, note in enumerate(notes):
        figure.text(0.15 / width, 1 - (0.37 + 0.19 * i) / height, note, size=LABEL_SIZE, va="top",
                    color=QUIET)
    axes = []
    above = title_height
    for i, one in enumerate(rooms):
        column = i % columns
        axes.append(figure.add_axes((
            (column * across + one.left) / width,
            1 - (above + one.top + one.height) / height,
            one.width / width,
            one.height / height,
        )))
        if column == columns - 1:
            above += one.top + one.height + one.bottom
    return figure, axes


def inches(axis: Axes) -> tuple[float, float]:
    """Width and height of the axes."""
    box, figure = axis.get_position(), cast(Figure, axis.figure)
    width, height = figure.get_size_inches()
    return float(box.width * width), float(box.height * height)


def size_axis(axis: Axes, sizes: Iterable[int], most: int = 6) -> None:
    """Block sizes, on a logarithmic scale; at most so many of them have a label."""
    known = sorted(set(sizes))
    step = -(-len(known) // most)
    axis.set_xscale("log", base=2)
    shown = known[::step]
    axis.set_xticks(shown, [bytes_text(size) for size in shown])
    axis.set_xticks([], minor=True)
    axis.set_xlim(known[0] / 1.3, known[-1] * 1.3)
    axis.set_xlabel("block size")
    axis.grid(axis="x", visible=False)


@dataclass(frozen=True)
class EndLabel:
    """What a line is called, beside its end at (x, y)."""

    x: float
    y: float
    text: str
    color: Any
    line_color: Any
    weight: str = "normal"

    @property
    def lines(self) -> int:
        return self.text.count("\n") + 1


def wrapped(text: str, width: int = 27) -> str:
    """In as few lines as so many characters allow, and those as even as can be."""
    lines = textwrap.wrap(text, width)
    for narrower in range(width - 1, 0, -1):
        tried = textwrap.wrap(text, narrower, break_long_words=False)
        if len(tried) > len(lines):
            break
        lines = tried
    return "\n".join(lines)


def family(contestant: str) -> str:
    """The first word, as UCX of "UCX put 1.22 tcp". A family has one colour in all panels."""
    return contestant.partition(" ")[0]


def family_colors(contestants: Iterable[str]) -> dict[str, str]:
    families = dict.fromkeys(family(one) for one in contestants)
    return {one: PALETTE[i % len(PALETTE)] for i, one in enumerate(families)}


def paler(color: str, part: float) -> tuple[float, float, float]:
    """So much of the way to white."""
    red, green, blue = to_rgb(color)
    return (red + (1 - red) * part, green + (1 - green) * part, blue + (1 - blue) * part)


def end_labels(axis: Axes, labels: Sequence[EndLabel]) -> None:
    """Right of the axes, each at the height of its line or, where it is crowded, near to it.

    The axes' limits and place are final.
    """
    height = inches(axis)[1] * _POINTS
    line = LABEL_SIZE * 1.22 / height
    low, high = axis.get_ylim()
    ordered = sorted(labels, key=lambda label: label.y)
    wanted = [(label.y - low) / (high - low) for label in ordered]
    places = spread(wanted, [label.lines * line for label in ordered])
    for label, place in zip(ordered, places):
        axis.annotate(
            label.text, xy=(label.x, label.y), xycoords="data",
            xytext=(1.045, place), textcoords="axes fraction",
            va="center", ha="left", size=LABEL_SIZE, color=label.color, weight=label.weight,
            linespacing=1.05, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": label.line_color, "linewidth": 0.6,
                        "alpha": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)},
        )


def spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles of things so high, none over another, as near as can be to where they are wanted, and
    between 0 and 1 where there is room for all.

    `wanted` rises. Things that touch move as one, to the mean of what its members want.
    """
    def inside(middle: float, height: float) -> float:
        return max(min(middle, 1 - height / 2), min(height / 2, 0.5))

    groups: list[tuple[float, float, list[int]]] = []  # middle, height, members
    for i, middle in enumerate(wanted):
        groups.append((inside(middle, heights[i]), heights[i], [i]))
        while len(groups) > 1:
            (below, low, first), (above, high, second) = groups[-2:]
            if below + low / 2 <= above - high / 2:
                break
            whole, members = low + high, first + second
            # Where the middle of the whole has to be for each member to be where it is wanted.
            start, sum_of = 0.0, 0.0
            for member in members:
                sum_of += wanted[member] - (start + heights[member] / 2)
                start += heights[member]
            groups[-2:] = [(inside(sum_of / len(members) + whole / 2, whole), whole, members)]
    places = [0.0] * len(wanted)
    for middle, whole, members in groups:
        start = middle - whole / 2
        for member in members:
            places[member] = start + heights[member] / 2
            start += heights[member]
    return places
