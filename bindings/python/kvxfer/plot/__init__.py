"""Draws what ``kvxfer bench --json`` and ``benchmarks/compare`` measured.

    python -m kvxfer plot results.json [more.json ...] [--out FOLDER|FILE] [--kind KIND]

or, in a program or notebook::

    from kvxfer.plot import figures
    figures(["results.json"])["bandwidth"]

Needs matplotlib (``pip install 'kvxfer[plot]'``); importing this module alone does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("bandwidth", "latency", "cdf", "timeline")

__all__ = ["KINDS", "figures", "main"]


def figures(paths: Iterable[str], kinds: Iterable[str] = ()) -> dict[str, Figure]:
    """A figure for each of ``kinds``; without any, for each that the documents have data for.

    kvxfer.InvalidArgument: a document is none, or has no data for a kind that was asked for; the
    text names file, field and what was expected. ImportError: matplotlib is missing.
    """
    from kvxfer.plot import drawing  # pylint: disable=import-outside-toplevel

    return drawing.draw([str(path) for path in paths], tuple(kinds))


def main(arguments: list[str] | None = None) -> int:
    """The command ``plot``; returns its exit status."""
    from kvxfer.plot import command  # pylint: disable=import-outside-toplevel

    return command.main(arguments)
