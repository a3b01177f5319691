"""Results that are whole are written and read; others never are."""

import json
import os
import tempfile
import unittest

import figures
import report


def result():
    rows = []
    for kind, name, seconds in (("kvxfer", "ours", 0.5), ("raw", "raw", 0.4),
                                ("peer", "theirs", 1.0)):
        samples = figures.Samples(1 << 28)
        for _ in range(3):
            samples.add({"prefill": {"seconds": [seconds], "cpu_s": 0.1},
                         "decode": {"seconds": [], "cpu_s": 0.1}})
        rows.append({"group": "tcp", "contestant": name, "kind": kind, "block_bytes": 4096,
                     "blocks": 1 << 16, "bytes": 1 << 28, "threads": 2, "spin": False,
                     "verified": True,
                     **samples.figures()})
    return {"schema": report.SCHEMA, "complete": True, "date": "2026-01-02 03:04 UTC",
            "machine": {"cpu": "a CPU", "cpus": 2, "virtual": True, "memory_gib": 24.0,
                        "kernel": "6.18", "huge_pages": "madvise", "huge_pages_shared": "never"},
            "versions": {"kvxfer": "abc"}, "workload": {"total": 1 << 28, "block_sizes": [4096],
                                                        "turns": 3,
                                                        "load_before": 0.1},
            "titles": {"tcp": "TCP over loopback"},
            "missing": [{"name": "NIXL tcp", "reason": "no network"}],
            "failed": [{"group": "shm-mapped", "title": "Shared memory", "reason": "it ended"}],
            "results": rows,
            "ratios": figures.ratios(rows)}


class SchemaTest(unittest.TestCase):
    def test_a_whole_result_has_no_problems(self):
        self.assertEqual(report.problems(result()), [])

    def test_what_is_missing_is_named(self):
        for field in ("machine", "results", "failed", "complete"):
            broken = result()
            del broken[field]
            self.assertIn(field, " ".join(report.problems(broken)))
        broken = result()
        del broken["results"][1]["p99_us"]
        self.assertEqual(report.problems(broken), ["a row has no p99_us of type float"])

    def test_partial_never_passes_for_whole(self):
        broken = result()
        broken["complete"] = False
        self.assertEqual(report.problems(broken), ["it is not complete"])
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(ValueError):
                report.write_json(os.path.join(folder, "compare.json"), broken)
            self.assertEqual(os.listdir(folder), [])


class WriteTest(unittest.TestCase):
    def test_what_is_written_reads_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "compare.json")
            report.write_json(path, result())
            with open(path, encoding="utf-8") as file:
                back = json.load(file)
            self.assertEqual(report.problems(back), [])
            self.assertEqual([row["contestant"] for row in back["results"]],
                             ["ours", "raw", "theirs"])
            self.assertEqual(back["ratios"][0]["best_peer"], "theirs")
            self.assertEqual(os.listdir(folder), ["compare.json"])


class MarkdownTest(unittest.TestCase):
    def setUp(self):
        self.text = report.markdown(result(), ["bandwidth.png"])

    def test_says_what_was_measured_on_what(self):
        for part in ("2026-01-02", "2 CPUs a CPU (virtual)", "256 MiB a round", "kvxfer abc",
                     "Missing: NIXL tcp: no network.",
                     "**Failed, and not measured: Shared memory** (`shm-mapped`): it ended.",
                     "## TCP over loopback",
                     "![bandwidth.png](bandwidth.png)"):
            self.assertIn(part, self.text)

    def test_has_a_line_for_each_contestant(self):
        self.assertIn("| **ours** | 0.54 |", self.text)
        self.assertIn("| *raw* (raw reference) | 0.67 |", self.text)
        self.assertIn("| theirs | 0.27 |", self.text)

    def test_has_the_ratios(self):
        self.assertIn("| ours | 4K | 0.80 | 2.00 | theirs | 1.00 | 1.00 |", self.text)

    def test_every_line_of_a_table_has_as_many_cells(self):
        text = report.table(["a", "b"], [["x", "1"], ["y", "2"]])
        self.assertEqual({line.count("|") for line in text.splitlines()}, {3})


if __name__ == "__main__":
    unittest.main()
