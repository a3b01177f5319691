"""Figures as files, each whole or not there."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import matplotlib
from PIL import Image  # matplotlib brings it

from kvxfer.plot import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(figures: dict[str, Figure], out: str) -> list[str]:
    """Writes each figure whole or not at all; returns the files. `out`: a file or a folder."""
    suffix = os.path.splitext(out)[1].lower()
    if suffix == ".pdf":
        # pylint: disable-next=import-outside-toplevel (slow, and seldom needed)
        from matplotlib.backends.backend_pdf import PdfPages

        drawn = io.BytesIO()
        with matplotlib.rc_context(style.RC):
            with PdfPages(drawn, metadata={"CreationDate": None}) as pages:
                for figure in figures.values():
                    pages.savefig(figure)
        return [_replace(out, drawn.getvalue())]
    if suffix in (".png", ".svg"):
        (figure,) = figures.values()
        return [_replace(out, _rendered(figure, suffix))]
    os.makedirs(out, exist_ok=True)
    return [
        _replace(os.path.join(out, f"{kind}.png"), _rendered(figure, ".png"))
        for kind, figure in figures.items()
    ]


def _rendered(figure: Figure, suffix: str) -> bytes:
    drawn = io.BytesIO()
    with matplotlib.rc_context(style.RC):
        if suffix == ".svg":
            figure.savefig(drawn, format="svg", metadata={"Date": None})
            return drawn.getvalue()
        figure.savefig(drawn, format="png")
    # Few colours make a file small enough to keep beside the figures.
    small = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(
        128, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(small, format="png", optimize=True)
    return small.getvalue()


def _replace(path: str, content: bytes) -> str:
    beside = f"{path}.tmp"
    with open(beside, "wb") as file:
        file.write(content)
    os.replace(beside, path)
    return path
