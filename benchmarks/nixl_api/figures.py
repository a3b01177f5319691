"""From nanoseconds of single requests to the figures of a row. Pure."""

import dataclasses
import math
import statistics
from collections import defaultdict

from contestants import DROP_IN, Contestant


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured; ``how``: what differs but for model and prompt."""

    what: str
    model: str
    tokens: int
    how: str


# What of it is the figure of a row, and what the drop-in's median may be at most: a share of the
# best NIXL's, or milliseconds.
_GOALS: dict[str, list[tuple[str, float, str]]] = {
    "request": [("known", 0.7, "share"), ("told", 0.7, "share")],
    "handshake": [("all", 1.0, "share")],
    "first": [("all", 1.0, "share"), ("known", 1.0, "share")],
    "answer": [("answered", 1.0, "share")],
    "scattered": [("known", 1.0, "share")],
    "submit_lists": [("submit", 5.0, "ms")],
    "submit_indices": [("submit", 5.0, "ms")],
}


class Samples:
    """All that was measured, turn by turn."""

    def __init__(self) -> None:
        self._times: dict[tuple[Row, str, str], dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._contestant, self._turn, self._visit = "", 0, ""
        self._visits: dict[Row, str] = {}

    def begin(self, contestant: str, turn: int, visit: str) -> None:
        """What is added from now on is of these."""
        self._contestant, self._turn, self._visit = contestant, turn, visit

    def add(self, row: Row, took: dict[str, int]) -> None:
        self.add_all(row, {part: [one] for part, one in took.items()})

    def add_all(self, row: Row, took: dict[str, list[int]]) -> None:
        self._visits[row] = self._visit
        for part, times in took.items():
            self._times[row, self._contestant, part][self._turn] += times

    def rows(self, visit: str | None = None) -> list[Row]:
        """All, or those of a visit."""
        return [row for row, of in self._visits.items() if visit in (None, of)]

    def contenders(self, visit: str, names: list[str], within: float) -> set[str]:
        """Whose median is within so many times the best of ``names``, in any figure."""
        found = set()
        for row in self.rows(visit):
            for figure, _, _ in _GOALS[row.what]:
                medians = {
                    name: statistics.median(sum(self.parts(row, name)[figure], []))
                    for name in names
                }
                most = within * min(medians.values())
                found |= {name for name, median in medians.items() if median <= most}
        return found

    def parts(self, row: Row, contestant: str) -> dict[str, list[list[int]]]:
        """Of each part the turns."""
        return {
            part: [turns[turn] for turn in sorted(turns)]
            for (of, who, part), turns in self._times.items()
            if (of, who) == (row, contestant)
        }


def percentile(values: list[int], percent: float) -> int:
    """The smallest value that at least ``percent`` % of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1e3, 1)


def _part(turns: list[list[int]]) -> dict:
    every = [one for turn in turns for one in turn]
    return {
        "count": len(every),
        "p50_us": _us(statistics.median(every)),
        "p99_us": _us(percentile(every, 99)),
        "turn_p50_us": [_us(statistics.median(turn)) for turn in turns],
    }


def ratio_of_turns(ours: dict, theirs: dict) -> float:
    """Below 1: we are faster. The median over the turns, each with its neighbour: what slows the
    machine for a while slows both and cancels out."""
    pairs = zip(ours["turn_p50_us"], theirs["turn_p50_us"])
    return statistics.median(our / their for our, their in pairs)


def _compare(by_name: dict[str, dict], ours: str | None, figure: str) -> dict:
    """The best NIXL of this figure, and the drop-in's ratios to it."""
    peers = {name: parts[figure] for name, parts in by_name.items() if name != ours}
    if not peers or ours not in by_name:
        return {}
    # Those that were left out after a few turns were slower, and their turns have no neighbours.
    turns = max(len(peer["turn_p50_us"]) for peer in peers.values())
    kept = [name for name in peers if len(peers[name]["turn_p50_us"]) == turns]
    best = min(kept, key=lambda name: peers[name]["p50_us"])
    mine = by_name[ours][figure]
    return {
        "best": best,
        "ratio": round(ratio_of_turns(mine, peers[best]), 3),
        "ratio_p99": round(mine["p99_us"] / peers[best]["p99_us"], 3),
    }


def _met(mine: dict, compared: dict, goal: float, unit: str) -> bool | None:
    if unit == "ms":
        return mine["p50_us"] <= goal * 1e3
    return compared["ratio"] <= goal if compared else None


def rows(samples: Samples, contestants: list[Contestant]) -> list[dict]:
    """One for each figure of each row."""
    ours = next((one.name for one in contestants if one.kind == DROP_IN), None)
    result = []
    for row in samples.rows():
        by_name = {
            one.name: {part: _part(turns) for part, turns in samples.parts(row, one.name).items()}
            for one in contestants
        }
        for figure, goal, unit in _GOALS[row.what]:
            compared = _compare(by_name, ours, figure)
            mine = by_name[ours][figure] if ours else {}
            result.append(
                {
                    **dataclasses.asdict(row),
                    "figure": figure,
                    "goal": goal,
                    "goal_unit": unit,
                    "met": _met(mine, compared, goal, unit) if mine else None,
                    **compared,
                    "contestants": by_name,
                }
            )
    return result
