"""What needs neither NIXL nor kvxfer: python3 benchmarks/nixl_api/tests/test_nixl_api.py"""

import random
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import figures  # noqa: E402
import report  # noqa: E402
from contestants import ALL  # noqa: E402
from figures import Row, Samples  # noqa: E402
from models import MODELS, PROMPTS, scattered  # noqa: E402

OURS, FAST, SLOW = ALL[0], ALL[1], ALL[2]
REQUEST = Row("request", "tiny", 400, "idle")
PARTS = ("make", "post", "poll", "known", "told")


def samples(*turns: tuple[int, int, int]) -> Samples:
    """Of OURS, FAST and SLOW; 0: was left out of that turn."""
    made = Samples()
    for turn, times in enumerate(turns):
        for one, time in zip((OURS, FAST, SLOW), times):
            made.begin(one.name, turn, "steady tiny")
            if time:
                made.add_all(REQUEST, {part: [time * 1000] * 3 for part in PARTS})
    return made


class Figures(unittest.TestCase):
    def rows(self, *turns: tuple[int, int, int]) -> list[dict]:
        return figures.rows(samples(*turns), [OURS, FAST, SLOW])

    def test_a_ratio_is_of_neighbouring_turns(self) -> None:
        known = self.rows((10, 20, 90), (100, 200, 900), (5, 10, 90))[0]
        self.assertEqual((known["best"], known["ratio"]), (FAST.name, 0.5))
        self.assertTrue(known["met"])

    def test_a_goal_that_is_missed(self) -> None:
        self.assertFalse(self.rows((8, 10, 90))[0]["met"])

    def test_who_was_left_out_is_not_the_best(self) -> None:
        known = self.rows((10, 20, 1), (10, 20, 0))[0]
        self.assertEqual(known["best"], FAST.name)

    def test_contenders(self) -> None:
        made = samples((1, 20, 27), (1, 20, 27))
        names = [FAST.name, SLOW.name]
        self.assertEqual(made.contenders("steady tiny", names, 1.4), set(names))
        self.assertEqual(made.contenders("steady tiny", names, 1.3), {FAST.name})

    def test_percentile(self) -> None:
        self.assertEqual(figures.percentile(list(range(1, 101)), 99), 99)
        self.assertEqual(figures.percentile([7], 99), 7)

    def test_without_the_drop_in_there_are_figures_and_no_ratios(self) -> None:
        rows = figures.rows(samples((0, 20, 30)), [FAST, SLOW])
        self.assertNotIn("ratio", rows[0])
        self.assertIsNone(rows[0]["met"])


class Report(unittest.TestCase):
    def test_every_row_is_there(self) -> None:
        chosen = [OURS, FAST, SLOW]
        result = {
            "date": "2026-01-02 03:04 UTC", "turns": 1, "seed": 1, "memory": "dram",
            "machine": {"cpu": "a CPU", "cpus": 2, "virtual": True, "memory_gib": 8.0,
                        "kernel": "6.1"},
            "load": {"before": 0.1, "after": 0.2}, "versions": {"kvxfer": "abc"},
            "contestants": [one.describe() for one in chosen],
            "rows": figures.rows(samples((10, 20, 90)), chosen),
        }  # fmt: skip
        text = report.markdown(result)
        self.assertIn("| tiny, 400 tokens, idle | 10.0 / 10.0 | 20.0 / 20.0 |", text)
        self.assertIn("| 0.50 | 0.50 | 0.7 yes |", text)


class Models(unittest.TestCase):
    def test_prompts_fit_and_blocks_are_distinct(self) -> None:
        for model in MODELS.values():
            for tokens in PROMPTS:
                count = model.blocks_of(tokens)
                self.assertGreaterEqual(count * model.tokens, tokens)
                for ids in scattered(model, count, random.Random(3)):
                    self.assertEqual(len(set(ids)), count)
                    self.assertLess(max(ids), model.blocks)

    def test_sizes(self) -> None:
        self.assertEqual(MODELS["tiny"].block_bytes, 16 << 10)
        self.assertEqual(MODELS["llama-8b"].block_bytes, 64 << 10)


if __name__ == "__main__":
    unittest.main()
