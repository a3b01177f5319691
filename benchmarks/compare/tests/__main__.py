"""Runs the tests of the runner: python3 benchmarks/compare/tests [COUNTS].

COUNTS: a file for "passed failed skipped", as scripts/test adds them up.
"""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]


def main():
    suite = unittest.defaultTestLoader.discover(HERE, top_level_dir=HERE)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = len(result.failures) + len(result.errors)
    skipped = len(result.skipped)
    if len(sys.argv) > 1:
        os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
        with open(sys.argv[1], "w", encoding="ascii") as counts:
            counts.write(f"{result.testsRun - failed - skipped} {failed} {skipped}\n")
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
