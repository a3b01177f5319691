"""The whole program, with the drivers of the build that KVXFER_COMPARE_BIN names; small caches."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import report

_RUNNER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BIN = os.environ.get("KVXFER_COMPARE_BIN", "")


def run(*arguments):
    return subprocess.run([sys.executable, _RUNNER, *arguments], capture_output=True, text=True,
                          timeout=120, check=False)


class ArgumentsTest(unittest.TestCase):
    def refused(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr.splitlines()[-1]

    def test_nonsense_is_refused(self):
        self.assertIn("unrecognized arguments: --nonsense", self.refused("--nonsense"))
        self.assertIn("invalid choice: 'rdma'", self.refused("--groups", "rdma"))
        self.assertIn("100 is no multiple of 64", self.refused("--block-sizes", "100"))
        self.assertIn("0 is not above zero", self.refused("--turns", "0"))
        self.assertIn("invalid", self.refused("--total", "much"))

    def test_a_block_larger_than_a_round_is_refused(self):
        self.assertIn("holds no block of 1048576",
                      self.refused("--total", "65536", "--block-sizes", "1048576"))

    def test_a_folder_without_drivers_is_refused(self):
        self.assertIn("compare_drivers", self.refused("--bin", "/nowhere"))


@unittest.skipUnless(_BIN, "KVXFER_COMPARE_BIN names no drivers")
class WholeRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")
        self.small = ["--no-peers", "--total", "1048576", "--block-sizes", "4096", "65536",
                      "--turns", "1", "--quick", "--out", self.out]

    def test_leaves_one_whole_result(self):
        groups = ["tcp", "shm-mapped", "shm-attached", "ping-tcp", "ping-shm"]
        done = run("--bin", _BIN, "--groups", *groups, *self.small)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.out, "compare.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(report.problems(result), [])
        self.assertEqual({row["group"] for row in result["results"]}, set(groups))
        self.assertTrue(all("to_raw" in ratio for ratio in result["ratios"]))
        with open(os.path.join(self.out, "compare.md"), encoding="utf-8") as file:
            self.assertEqual(file.read().strip(), done.stdout.strip())

    def break_raw_tcp(self):
        broken = os.path.join(os.path.dirname(self.out), "bin")
        shutil.copytree(_BIN, broken, ignore=lambda folder, names: [
            name for name in names if not name.startswith("compare_")])
        with open(os.path.join(broken, "compare_raw_tcp"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexit 3\n")
        return broken

    def test_a_group_that_fails_costs_only_that_group(self):
        done = run("--bin", self.break_raw_tcp(), "--groups", "tcp", "shm-mapped", *self.small)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1],
                         "^compare: tcp is not in the result: raw.*ended with exit status 3")
        with open(os.path.join(self.out, "compare.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual(report.problems(result), [])
        self.assertEqual({row["group"] for row in result["results"]}, {"shm-mapped"})
        self.assertEqual([one["group"] for one in result["failed"]], ["tcp"])
        self.assertIn("**Failed, and not measured: TCP over loopback** (`tcp`): raw", done.stdout)

    def test_no_result_is_left_where_every_group_fails(self):
        done = run("--bin", self.break_raw_tcp(), "--groups", "tcp", *self.small)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ended with exit status 3", done.stderr.splitlines()[-1])
        self.assertIn("no result was written", done.stderr.splitlines()[-1])
        self.assertEqual(os.listdir(self.out), [])

    def test_what_is_built_holds_what_the_drivers_load(self):
        if not os.path.exists(os.path.join(_BIN, "compare_ucx")):
            self.skipTest("UCX's headers are not installed")
        made = subprocess.run(["ninja", "-C", os.path.dirname(_BIN), "-t", "inputs",
                               "compare_drivers"], capture_output=True, text=True, check=True)
        self.assertTrue(any("kvxfer_backend_ucx_plugin.dir" in line
                            for line in made.stdout.splitlines()),
                        "compare_drivers does not build libkvxfer_backend_ucx.so")


if __name__ == "__main__":
    unittest.main()
