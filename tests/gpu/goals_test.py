"""Judging what `kvxfer bench` printed, which needs neither: python3 tests/gpu/goals_test.py"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from goals import SECTIONS, Goal, Share, Turn, judge  # noqa: E402

TIME = Goal("a time", "one", "p50_us", block=4096, limit=110)
RATE = Goal("a rate", "one", block=4096, limit=25)
SHARED = Goal("a share", "one", block=4096,
              shares=(Share("device_copy_gbps", "a copy", 0.5),
                      Share("two/gb_per_s", "two", 0.9)))  # fmt: skip


def turn(one: dict | None = None, two: dict | None = None) -> Turn:
    """What two runs printed. Blocks of another size are in front of those that are looked for."""

    def document(figures: dict | None) -> dict:
        known = {"block_bytes": 4096, "path": "cuda_ipc: copy kernel", "gb_per_s": 10.0,
                 "p50_us": 100.0, "device_copy_gbps": 20.0, **(figures or {})}  # fmt: skip
        return {"results": [{"block_bytes": 64, "path": "shm"}, known]}

    return {"one": document(one), "two": document(two)}


class Judge(unittest.TestCase):
    def judge(self, goal: Goal, *turns: Turn, way: str = "cuda_ipc", judged: bool = True) -> str:
        self.judgement = judge(goal, way, list(turns) or [turn()], judged)
        return self.judgement.word

    def test_a_time_is_at_most(self) -> None:
        self.assertEqual(self.judge(TIME), "ok")
        self.assertEqual(self.judge(TIME, turn({"p50_us": 110.5})), "FAIL")

    def test_a_rate_is_at_least(self) -> None:
        self.assertEqual(self.judge(RATE, turn({"gb_per_s": 25.0})), "ok")
        self.assertEqual(self.judge(RATE), "FAIL")

    def test_every_share_is_reached(self) -> None:
        self.assertEqual(self.judge(SHARED), "ok")
        self.assertEqual(self.judge(SHARED, turn({"device_copy_gbps": 21.0})), "FAIL")
        self.assertEqual(self.judge(SHARED, turn(two={"gb_per_s": 11.5})), "FAIL")

    def test_the_median_of_the_turns_counts(self) -> None:
        slow, fast = turn({"p50_us": 500.0}), turn()
        self.assertEqual(self.judge(TIME, slow, fast, fast), "ok")
        self.assertEqual(self.judge(TIME, slow, fast, slow), "FAIL")

    def test_a_ratio_is_of_one_turn(self) -> None:
        """A machine that is slow for a while slows both."""
        half = turn({"gb_per_s": 5.0, "device_copy_gbps": 10.0}, {"gb_per_s": 5.0})
        self.assertEqual(self.judge(SHARED, half, turn()), "ok")

    def test_what_came_another_way_is_not_measured(self) -> None:
        self.assertEqual(self.judge(TIME, turn({"path": "shm: mapped"})), "FAIL")
        self.assertEqual(self.judge(TIME, turn({"path": "tcp: staged"})), "FAIL")
        self.assertEqual(self.judge(TIME, turn({"path": "tcp: staged"}), way="tcp staged"), "ok")

    def test_what_is_missing_is_a_failure(self) -> None:
        self.assertEqual(self.judge(TIME, {"one": "it crashed"}, judged=False), "FAIL")
        self.assertIn("it crashed", self.judgement.text)
        self.assertEqual(self.judge(TIME, turn({"p50_us": None})), "FAIL")
        self.assertEqual(self.judge(Goal("no such block", "one", block=1)), "FAIL")

    def test_a_run_between_two_instances_has_one_result(self) -> None:
        document = {"backend": "cuda_ipc", "results": [{"write_blocks": {"gb_per_s": 5.0}}]}
        goal = Goal("TP", "tp", "write_blocks.gb_per_s", limit=5)
        self.assertEqual(self.judge(goal, {"tp": document}), "ok")

    def test_what_is_not_judged_does_not_fail(self) -> None:
        self.assertEqual(self.judge(RATE, judged=False), "-")
        self.assertEqual(self.judge(Goal("for the reader", "one", block=4096)), "-")

    def test_a_missing_copy_kernel_is_told(self) -> None:
        self.judge(TIME, turn({"path": "cuda_ipc: driver copies, a call each"}))
        self.assertIn("without the copy kernel", self.judgement.text)


class Sections(unittest.TestCase):
    def test_goals_are_of_runs_that_there_are(self) -> None:
        for make in SECTIONS.values():
            for quick in (False, True):
                runs, goals = make(quick)
                names = [one.name for one in runs]
                self.assertEqual(len(names), len(set(names)))
                others = [s.field.split("/")[0] for g in goals for s in g.shares if "/" in s.field]
                for name in [goal.run for goal in goals] + others:
                    self.assertIn(name, names)


if __name__ == "__main__":
    unittest.main()
