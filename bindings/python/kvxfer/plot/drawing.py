"""From documents to figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib

from kvxfer._errors import InvalidArgument
from kvxfer.plot import KINDS, bandwidth, cdf, latency, timeline
from kvxfer.plot.documents import load
from kvxfer.plot.style import RC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWERS = {
    "bandwidth": bandwidth,
    "latency": latency,
    "cdf": cdf,
    "timeline": timeline,
}


def draw(paths: Sequence[str], kinds: Sequence[str]) -> dict[str, Figure]:
    """See kvxfer.plot.figures."""
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidArgument(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    documents = [load(path) for path in paths]
    figures = {}
    with matplotlib.rc_context(RC):
        for kind in KINDS:
            if kinds and kind not in kinds:
                continue
            data = _DRAWERS[kind].data(documents, asked=kind in kinds)
            if data:
                figures[kind] = _DRAWERS[kind].draw(data, documents)
            elif kinds:
                raise InvalidArgument(
                    f"{', '.join(paths)}: nothing to draw as {kind}; "
                    f"expected {_DRAWERS[kind].NEEDS}"
                )
    if not figures:
        needs = "; or ".join(drawer.NEEDS for drawer in _DRAWERS.values())
        raise InvalidArgument(f"{', '.join(paths)}: nothing to draw; expected {needs}")
    return figures
