"""Draws a result as `kvxfer plot` does: plots.py RESULT.json FOLDER. Prints the files it wrote.

Takes the package's plots from this checkout, without its compiled part: they need matplotlib alone.
"""

import os
import sys
import types

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    package = types.ModuleType("kvxfer")
    package.__path__ = [os.path.join(_ROOT, "bindings", "python", "kvxfer")]
    sys.modules["kvxfer"] = package
    from kvxfer.plot import main as plot  # pylint: disable=import-outside-toplevel

    return plot([sys.argv[1], "--out", sys.argv[2]])


if __name__ == "__main__":
    sys.exit(main())
