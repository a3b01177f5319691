"""From seconds to rows and ratios."""

import unittest

import figures


def answers(seconds, preparing_s=0.0, cpu_s=1.0):
    return {"prefill": {"seconds": seconds, "preparing_s": preparing_s, "cpu_s": cpu_s},
            "decode": {"seconds": [], "cpu_s": cpu_s / 2}}


def row(kind, contestant, turns_us, gb_per_s, group="tcp", jitter=1.0, cpu=0.2):
    return {"group": group, "block_bytes": 4096, "kind": kind, "contestant": contestant,
            "turn_p50_us": turns_us, "gb_per_s": gb_per_s,
            "gb_per_s_without_preparing": gb_per_s, "jitter": jitter,
            "cpu_s_per_gb_prefill": cpu, "cpu_s_per_gb_decode": cpu}


class PercentileTest(unittest.TestCase):
    def test_is_a_value_that_was_seen(self):
        values = list(range(1, 101))
        self.assertEqual(figures.percentile(values, 99), 99)
        self.assertEqual(figures.percentile(values, 100), 100)
        self.assertEqual(figures.percentile([5], 99), 5)
        self.assertEqual(figures.percentile([3, 1, 2], 50), 2)


class SamplesTest(unittest.TestCase):
    def test_rate_is_of_the_median_round(self):
        samples = figures.Samples(bytes_per_round=10**9)
        samples.add(answers([0.5, 0.5, 9.0]))
        result = samples.figures()
        self.assertAlmostEqual(result["gb_per_s"], 2.0)
        self.assertAlmostEqual(result["jitter"], 18.0)
        self.assertEqual(result["rounds"], 3)

    def test_preparing_is_told_apart(self):
        samples = figures.Samples(10**9)
        samples.add(answers([0.5, 0.5], preparing_s=0.5))
        result = samples.figures()
        self.assertAlmostEqual(result["gb_per_s"], 2.0)
        self.assertAlmostEqual(result["gb_per_s_without_preparing"], 4.0)

    def test_cpu_is_of_all_rounds_of_both_sides(self):
        samples = figures.Samples(10**9)
        samples.add(answers([1.0, 1.0], cpu_s=4.0))
        samples.add(answers([1.0, 1.0], cpu_s=8.0))
        result = samples.figures()
        self.assertAlmostEqual(result["cpu_s_per_gb_prefill"], 3.0)
        self.assertAlmostEqual(result["cpu_s_per_gb_decode"], 1.5)
        self.assertEqual(result["turn_p50_us"], [1e6, 1e6])


class RatiosTest(unittest.TestCase):
    def test_a_slow_spell_that_hits_both_cancels_out(self):
        rows = [row("kvxfer", "ours", [100, 100, 900], 1.0), row("raw", "raw", [90, 90, 810], 1.1)]
        self.assertAlmostEqual(figures.ratios(rows)[0]["to_raw"], 0.9)

    def test_the_build_before_is_compared_turn_by_turn(self):
        before = row("before", "ours, before", [110, 99, 990, 110], 1.0)
        rows = [row("kvxfer", "ours", [100, 100, 900, 100], 1.0), before,
                row("before", "others, before", [1, 1, 1, 1], 1.0)]
        ratio = figures.ratios(rows)[0]
        self.assertAlmostEqual(ratio["to_before"], (1.1 * 0.99 * 1.1 * 1.1) ** 0.25)
        self.assertLess(ratio["to_before_low"], ratio["to_before"])
        self.assertAlmostEqual(ratio["to_before_low"] * ratio["to_before_high"],
                               ratio["to_before"] ** 2)

    def test_the_best_peer_counts_without_its_preparing(self):
        slow = row("peer", "slow", [400, 400], 0.25)
        best = row("peer", "best", [300, 300], 0.33)
        best["gb_per_s_without_preparing"] = 0.66
        ratio = figures.ratios([row("kvxfer", "ours", [100, 100], 1.0), slow, best])[0]
        self.assertEqual(ratio["best_peer"], "best")
        self.assertAlmostEqual(ratio["to_best_peer"], 1.5)
        self.assertNotIn("to_raw", ratio)

    def test_only_rows_of_the_same_case_are_compared(self):
        rows = [row("kvxfer", "ours", [100], 1.0), row("raw", "raw", [10], 9.0, group="other")]
        self.assertNotIn("raw", figures.ratios(rows)[0])

    def test_references_are_no_bar(self):
        rows = [row("kvxfer", "ours", [100], 1.0), row("reference", "two threads", [10], 9.0)]
        self.assertEqual(set(figures.ratios(rows)[0]), {"group", "contestant", "block_bytes"})


if __name__ == "__main__":
    unittest.main()
