"""Visits every contestant in turn, over and over (A B C, C B A), always in new processes."""

import dataclasses
import os
import random
from collections.abc import Callable

from contestants import NIXL, Contestant
from figures import Row, Samples
from models import PROMPTS, STRIPS, Model, scattered
from pair import Pair
from places import Places

VISITS = ("first", "steady", "submit", "answer", "scattered")
_OF_MODELS = ("first", "steady")

_FRESH = 3  # pairs of agents in the same processes
_SUBMITTED = 100_000
_SUBMITTED_BYTES = 1024
_SUBMISSIONS = 5
_ROUND_TRIPS = 500
_FIRST_PROMPT = 800
# NIXL's configurations are all tried in so many turns. Then each visit keeps those that came so
# near to the best of them in any figure.
_TRIALS = 2
_NEAR = 1.4
_MODES = {"polling": False, "idle": True}  # what prefill does meanwhile


@dataclasses.dataclass(frozen=True)
class Plan:
    turns: int
    requests: int | None  # of a row and turn; None: the model's
    models: tuple[Model, ...]
    visits: tuple[str, ...]
    seed: int
    device: int | None = None  # the GPU in whose memory caches are; None: in host memory


def _shape(model: Model) -> dict:
    return {"layers": model.layers, "blocks": model.blocks, "block_bytes": model.block_bytes}


class Session:
    """``say`` takes one line about what goes on."""

    def __init__(self, plan: Plan, places: Places, say: Callable[[str], None]) -> None:
        self._plan, self._places, self._say = plan, places, say
        self.versions: dict[str, str] = {}

    def run(self, contestants: list[Contestant]) -> Samples:
        """PairError as soon as anything fails."""
        samples = Samples()
        for turn in range(self._plan.turns):
            for visit, model in self._visits():
                about = f"{visit} {model.name}" if model else visit
                load = os.getloadavg()[0]
                self._say(f"turn {turn + 1} of {self._plan.turns}: {about} (load {load:.1f})")
                chosen = self._choose(contestants, turn, about, samples)
                for contestant in chosen if turn % 2 == 0 else chosen[::-1]:
                    # The same blocks for everyone, others each turn.
                    rng = random.Random(f"{self._plan.seed} {turn} {about}")
                    samples.begin(contestant.name, turn, about)
                    getattr(self, f"_{visit}")(contestant, model, rng, samples)
        return samples

    @staticmethod
    def _choose(
        contestants: list[Contestant], turn: int, visit: str, samples: Samples
    ) -> list[Contestant]:
        nixl = [one.name for one in contestants if one.kind == NIXL]
        if turn < _TRIALS or not nixl:
            return contestants
        near = samples.contenders(visit, nixl, _NEAR)
        return [one for one in contestants if one.kind != NIXL or one.name in near]

    def _visits(self) -> list[tuple[str, Model | None]]:
        chosen = self._plan.visits
        pairs: list[tuple[str, Model | None]] = [
            (visit, model)
            for model in self._plan.models
            for visit in _OF_MODELS
            if visit in chosen
        ]
        return pairs + [(visit, None) for visit in chosen if visit not in _OF_MODELS]

    def _pair(self, contestant: Contestant, shape: dict) -> Pair:
        pair = Pair(contestant, self._places, shape, self._plan.seed, self._plan.device)
        self.versions[contestant.kind] = pair.version
        return pair

    @staticmethod
    def _meet(
        pair: Pair, model: Model, blocks: int, idle: bool, rng: random.Random
    ) -> tuple[dict, dict]:
        """Two fresh agents and their first transfer; what it took, and what each said of itself."""
        made = pair.both("make")
        ours, theirs = scattered(model, blocks, rng)
        prefill = made["prefill"]
        took = pair.served(
            1, idle, "meet", metadata=prefill["metadata"], bases=prefill["bases"], ours=ours,
            theirs=theirs,
        )  # fmt: skip
        return {**took, "create": made["decode"]["create_ns"]}, made

    def _first(
        self, contestant: Contestant, model: Model, rng: random.Random, samples: Samples
    ) -> None:
        blocks = model.blocks_of(_FIRST_PROMPT)
        with self._pair(contestant, _shape(model)) as pair:
            for which in range(1 + _FRESH):
                where = "new agents" if which else "new processes"
                took, _ = self._meet(pair, model, blocks, True, rng)
                samples.add(Row("first", model.name, _FIRST_PROMPT, where), took)

    def _steady(
        self, contestant: Contestant, model: Model, rng: random.Random, samples: Samples
    ) -> None:
        with self._pair(contestant, _shape(model)) as pair:
            took, _ = self._meet(pair, model, 1, True, rng)
            samples.add(Row("handshake", model.name, 0, "new processes"), took)
            for mode, idle in _MODES.items():
                for tokens in PROMPTS:
                    row = Row("request", model.name, tokens, mode)
                    samples.add_all(row, self._requests(pair, model, tokens, idle, rng))
            for _ in range(_FRESH):
                took, _ = self._meet(pair, model, 1, True, rng)
                samples.add(Row("handshake", model.name, 0, "new agents"), took)

    def _requests(
        self, pair: Pair, model: Model, tokens: int, idle: bool, rng: random.Random
    ) -> dict:
        count = 1 + (self._plan.requests or model.requests)
        ids = [scattered(model, model.blocks_of(tokens), rng) for _ in range(count)]
        return pair.served(count, idle, "requests", ids=ids, seed=rng.randrange(1 << 30))

    def _answer(
        self, contestant: Contestant, _: Model | None, rng: random.Random, samples: Samples
    ) -> None:
        strip = Model("4 KiB", 1, 1, 4 << 10, 1, 0)
        with self._pair(contestant, _shape(strip)) as pair:
            _, made = self._meet(pair, strip, 1, True, rng)
            pair.tell("prefill", "know_decode", metadata=made["decode"]["metadata"])
            order = {"do": "answer", "count": 2 * _ROUND_TRIPS}
            took = pair.beside(order, "round_trips", count=_ROUND_TRIPS)
            samples.add_all(Row("answer", strip.name, 0, "polling"), took)

    def _scattered(
        self, contestant: Contestant, _: Model | None, rng: random.Random, samples: Samples
    ) -> None:
        for strip in STRIPS.values():
            with self._pair(contestant, _shape(strip)) as pair:
                self._meet(pair, strip, 1, True, rng)
                took = self._requests(pair, strip, strip.blocks, False, rng)
                row = Row("scattered", strip.name, 0, f"{strip.blocks:,} blocks")
                samples.add_all(row, took)

    def _submit(
        self, contestant: Contestant, _: Model | None, rng: random.Random, samples: Samples
    ) -> None:
        strip = Model("strip", 1, 1, _SUBMITTED_BYTES, _SUBMITTED, 0)
        ordered = list(range(_SUBMITTED))
        with self._pair(contestant, _shape(strip)) as pair:
            _, made = self._meet(pair, strip, 1, True, rng)
            bases = made["prefill"]["bases"]
            for order in ("in order", "shuffled"):
                ids = {"ours": ordered, "theirs": ordered}
                if order == "shuffled":
                    ids = {side: rng.sample(ordered, _SUBMITTED) for side in ids}
                for do, arguments in (
                    ("submit_lists", {"bases": bases, **ids}),
                    ("submit_indices", ids),
                ):
                    pair.tell("decode", "clear", ours=ids["ours"])
                    for number in range(1 + _SUBMISSIONS):
                        took = pair.served(1, True, do, **arguments)
                        if number:
                            samples.add(Row(do, strip.name, 0, order), took)
                        else:
                            pair.tell("decode", "check", **ids)
