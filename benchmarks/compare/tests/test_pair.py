"""A pair tells what becomes of its processes, in one line, and never waits for ever."""

import os
import sys
import tempfile
import unittest

from pair import ContestantError, Pair

_FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_driver.py")


class PairTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = folder.name

    def pair(self, mode="", patience=60.0, pause=False, program=sys.executable):
        made = Pair("one", lambda role: [program, _FAKE, "--role", role, "--mode", mode],
                    dict(os.environ), self.logs, {"prefill": 0, "decode": 0}, pause=pause, patience=patience)
        self.addCleanup(made.stop)
        return made

    def failure(self, mode, patience=60.0):
        with self.assertRaises(ContestantError) as caught:
            pair = self.pair(mode, patience)
            pair.prepare(4096, 8, 7)
            pair.rounds(2)
        text = str(caught.exception)
        self.assertNotIn("\n", text)
        return text

    def test_both_sides_answer(self):
        pair = self.pair()
        self.assertEqual(pair.prepare(4096, 8, 7)["decode"], {"fingerprint": 7})
        answers = pair.rounds(3)
        pair.check()
        self.assertEqual(answers["prefill"]["seconds"], [0.001] * 3)
        self.assertAlmostEqual(answers["decode"]["cpu_s"], 0.003)

    def test_a_resting_pair_answers_once_awake(self):
        pair = self.pair(pause=True)
        pair.wake()
        self.assertEqual(len(pair.rounds(1)["prefill"]["seconds"]), 1)
        pair.rest()

    def test_what_libraries_print_is_no_answer(self):
        self.assertEqual(len(self.pair("noisy").rounds(1)["decode"]["seconds"]), 1)

    def test_a_side_that_dies_is_named(self):
        text = self.failure("die")
        self.assertIn("one, decode side ended by signal 9", text)
        self.assertIn(self.logs, text)

    def test_a_side_that_never_begins_is_named(self):
        self.assertIn("one, decode side ended with exit status 3", self.failure("silent"))

    def test_an_error_is_passed_on(self):
        self.assertEqual(self.failure("refuse"), "one, decode side: block 3 of 8 is not what was "
                         "sent, from byte 0")

    def test_a_side_that_hangs_is_named(self):
        self.assertIn("one gave no answer within 3 s (waiting for: decode)",
                      self.failure("hang", patience=3.0))

    def test_a_program_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(ContestantError, "one, prefill side could not be started"):
            self.pair(program=os.path.join(self.logs, "absent"))


if __name__ == "__main__":
    unittest.main()
