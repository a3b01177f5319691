"""The command ``kvxfer plot``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

from kvxfer._errors import InvalidArgument
from kvxfer.plot import KINDS

_FAILED, _USAGE = 1, 2  # docs/cli.md
_SUFFIXES = (".png", ".svg", ".pdf")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(_USAGE, f"kvxfer: plot: {message} (see kvxfer plot --help)\n")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="kvxfer plot",
        description="Draws what kvxfer bench --json and benchmarks/compare measured. "
        "Prints the names of the files that it wrote.",
        epilog="Exit status: 0 done; 1 a file could not be written; 2 a bad argument or document, "
        "or matplotlib is missing.",
    )
    parser.add_argument("documents", nargs="+", metavar="results.json")
    parser.add_argument(
        "--out", default=".", metavar="FOLDER|FILE",
        help="a folder, which gets KIND.png; or a file that ends in .png or .svg, for one kind, or "
        "in .pdf, which has a page for each (default: this folder)",
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, default=[],
        help="what to draw, also several times (default: all that the documents have data for)",
    )
    return parser.parse_args(arguments)


def _check_out(out: str, figures: Collection[str]) -> None:
    suffix = os.path.splitext(out)[1].lower()
    if suffix in (".png", ".svg") and len(figures) > 1:
        raise InvalidArgument(
            f"--out {out}: is one file, and there are {len(figures)} figures "
            f"({', '.join(figures)}); expected a folder, a .pdf, or one --kind"
        )
    if suffix and suffix not in _SUFFIXES and not os.path.isdir(out):
        raise InvalidArgument(
            f"--out {out}: ends in {suffix}; expected {', '.join(_SUFFIXES)} or a folder"
        )


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    try:
        # Drawing alone needs it, and so does nothing that is imported above.
        from kvxfer.plot import drawing, files  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        return _complain(f"plot needs matplotlib ({error}): pip install 'kvxfer[plot]'", _USAGE)
    try:
        figures = drawing.draw(options.documents, options.kind)
        _check_out(options.out, figures)
    except InvalidArgument as error:
        return _complain(str(error), _USAGE)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}", _USAGE)
    try:
        for path in files.write(figures, options.out):
            print(path)
    except OSError as error:
        return _complain(f"{error.filename or options.out}: {error.strerror}", _FAILED)
    return 0


def _complain(message: str, status: int) -> int:
    print(f"kvxfer: {message}", file=sys.stderr)
    return status
