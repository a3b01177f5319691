"""Turns, counts and failures of whole groups, with drivers that move nothing."""

import os
import sys
import tempfile
import unittest

import contestants
import report
from environment import SetupError
from session import Plan, Session

_FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_driver.py")


class _Fake(contestants.Contestant):
    def command(self, where, role, size, cache_fd):
        return [sys.executable, _FAKE, "--role", role, "--mode", self.mode]


class _Places:
    def __init__(self, logs):
        self.logs = logs

    def environment(self, _):
        return dict(os.environ)


def group(*modes, ping=False, name="g"):
    kinds = (contestants.KVXFER, contestants.RAW, contestants.PEER)
    return contestants.Group(name, name.upper(), tuple(
        _Fake(f"c{i}", kind, "fake", mode) for i, (kind, mode) in enumerate(zip(kinds, modes))),
        ping=ping)


class SessionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.places = _Places(folder.name)
        self.plan = Plan(block_sizes=(4096, 8192), total=65536, turns=2, turn_s=0.003)

    def run_groups(self, *groups):
        return Session(self.plan, self.places, lambda line: None).run(groups)

    def run_group(self, one):
        rows, failed = self.run_groups(one)
        self.assertEqual(failed, [])
        return rows

    def test_every_contestant_has_a_row_for_every_size(self):
        rows = self.run_group(group("", "", ""))
        self.assertEqual([(row["contestant"], row["block_bytes"]) for row in rows],
                         [(name, size) for size in (4096, 8192) for name in ("c0", "c1", "c2")])
        self.assertEqual({row["bytes"] for row in rows}, {65536})

    def test_a_turn_takes_about_as_long_as_asked(self):
        rows = self.run_group(group(""))
        # Rounds of 1 ms each in turns of 3 ms; the warming one does not count.
        self.assertEqual([row["rounds"] for row in rows], [6, 6])
        self.assertEqual(len(rows[0]["turn_p50_us"]), 2)

    def test_a_ping_is_one_block(self):
        rows = self.run_group(group("", "", ping=True))
        self.assertEqual([(row["block_bytes"], row["blocks"]) for row in rows], [(4096, 1)] * 2)
        self.assertEqual(rows[0]["rounds"], 2 * Plan.least_pings)

    def test_rows_pass_the_schema(self):
        for row in self.run_group(group("", "")):
            self.assertEqual(report._mistyped(row, report._ROW, "a row"), [])

    def test_a_contestant_that_dies_costs_its_group_and_no_other(self):
        rows, failed = self.run_groups(group("", "", name="a"), group("", "die", "", name="b"),
                                       group("", "", name="c"))
        self.assertEqual({row["group"] for row in rows}, {"a", "c"})
        self.assertEqual([(one["group"], one["title"]) for one in failed], [("b", "B")])
        self.assertRegex(failed[0]["reason"], "^c1, decode side ended by signal 9")

    def test_other_work_is_refused(self):
        rows, failed = self.run_groups(group("", "stranger"))
        self.assertEqual(rows, [])
        self.assertRegex(failed[0]["reason"], "c1 has other work than c0")

    def test_what_cannot_be_set_up_costs_its_group_only(self):
        def environment(one):
            if one.mode == "noisy":
                raise SetupError("libucx-cu12 has no libraries")
            return dict(os.environ)

        self.places.environment = environment
        rows, failed = self.run_groups(group("noisy", name="a"), group("", name="b"))
        self.assertEqual({row["group"] for row in rows}, {"b"})
        self.assertEqual(failed[0]["reason"], "libucx-cu12 has no libraries")


if __name__ == "__main__":
    unittest.main()
