"""Draws a result: plots.py RESULT.json FOLDER. Needs matplotlib; prints the names it wrote."""

import io
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 (after the choice of how to draw)
from PIL import Image  # noqa: E402 (matplotlib brings it)

_STYLES = {
    "kvxfer": {"color": "#c2410c", "linewidth": 2.6, "marker": "o", "zorder": 5},
    "limit": {"color": "#111111", "linewidth": 1.8, "linestyle": "--", "zorder": 4},
    "reference": {"color": "#9ca3af", "linewidth": 1.2, "linestyle": ":"},
    "peer": {"linewidth": 1.4, "marker": "."},
}
_PEER_COLORS = ("#1d4ed8", "#60a5fa", "#15803d", "#86efac", "#7e22ce", "#c084fc")


def _size(count):
    return f"{count >> 20}M" if count >= 1 << 20 else f"{count >> 10}K"


def _time(us):
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _groups(result, ping):
    names = []
    for row in result["results"]:
        if (row["blocks"] == 1) == ping and row["group"] not in names:
            names.append(row["group"])
    return names


def _series(result, group):
    series = {}
    for row in result["results"]:
        if row["group"] == group:
            series.setdefault(row["contestant"], []).append(row)
    return series


def _finish(figure, folder, name):
    figure.tight_layout()
    path = os.path.join(folder, name)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=80)
    # Few colours make a file small enough to keep beside the figures.
    Image.open(drawn).convert("RGB").quantize(48).save(path + ".tmp", format="png", optimize=True)
    os.replace(path + ".tmp", path)
    print(name)


def throughput(result, folder):
    groups = _groups(result, ping=False)
    if not groups:
        return
    figure, axes = plt.subplots(1, len(groups), figsize=(5.2 * len(groups), 5.4), squeeze=False)
    for axis, group in zip(axes[0], groups):
        peers = iter(_PEER_COLORS)
        for name, rows in _series(result, group).items():
            style = dict(_STYLES[rows[0]["kind"]])
            if rows[0]["kind"] == "peer":
                style["color"] = next(peers, "#6b7280")
            axis.plot([row["block_bytes"] for row in rows],
                      [row["gb_per_s_without_preparing"] for row in rows], label=name, **style)
        sizes = sorted({row["block_bytes"] for rows in _series(result, group).values()
                        for row in rows})
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [_size(size) for size in sizes])
        axis.set_ylim(bottom=0)
        axis.set_title(group)
        axis.set_xlabel("block")
        axis.set_ylabel("GB/s")
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncol=2,
                    frameon=False)
    _finish(figure, folder, "throughput.png")


def latency(result, folder):
    groups = _groups(result, ping=True)
    if not groups:
        return
    columns = 2
    lines = (len(groups) + columns - 1) // columns
    tallest = max(len(_series(result, group)) for group in groups)
    figure, axes = plt.subplots(lines, columns, squeeze=False,
                                figsize=(13, lines * (0.9 + 0.26 * tallest)))
    for axis in axes.flat[len(groups):]:
        axis.set_visible(False)
    for axis, group in zip(axes.flat, groups):
        rows = [rows[0] for rows in _series(result, group).values()][::-1]
        colors = [_STYLES[row["kind"]].get("color", "#1d4ed8") for row in rows]
        places = range(len(rows))
        axis.barh(places, [row["p99_us"] for row in rows], color=colors, alpha=0.3, height=0.7)
        axis.barh(places, [row["p50_us"] for row in rows], color=colors, height=0.7)
        axis.set_yticks(places, [row["contestant"] for row in rows], fontsize=8)
        for place, row in zip(places, rows):
            axis.text(row["p99_us"], place, f" {_time(row['p50_us'])} / {_time(row['p99_us'])}",
                      va="center", fontsize=7)
        axis.set_xscale("log")
        axis.set_xlim(0.1, max(row["p99_us"] for row in rows) * 60)
        axis.set_title(f"{group}: µs, p50 (dark) and p99 (light)", fontsize=10)
        axis.grid(axis="x", alpha=0.25)
    _finish(figure, folder, "latency.png")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    for draw in (throughput, latency):
        draw(result, sys.argv[2])


if __name__ == "__main__":
    main()
