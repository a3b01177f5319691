"""Both languages describe the same work."""

import os
import subprocess
import unittest
import json

import workload


class PermutationTest(unittest.TestCase):
    def test_is_one(self):
        for count in (1, 2, 7, 1000):
            self.assertEqual(sorted(workload.permutation(count, 2)), list(range(count)))

    def test_differs_between_the_sides(self):
        source = workload.permutation(1000, workload.SOURCE_SEED)
        self.assertNotEqual(source, workload.permutation(1000, workload.TARGET_SEED))

    def test_neighbours_are_hardly_ever_adjacent_on_both_sides(self):
        source = workload.permutation(4096, workload.SOURCE_SEED)
        target = workload.permutation(4096, workload.TARGET_SEED)
        joined = sum(source[i + 1] - source[i] == 1 == target[i + 1] - target[i]
                     for i in range(4095))
        self.assertLess(joined, 3)


if __name__ == "__main__":
    unittest.main()
