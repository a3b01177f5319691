"""The result as JSON and as Markdown. Pure, but for write(), which leaves whole files or none."""

import json
import os

SCHEMA = 1

_ROW = {
    "group": str, "contestant": str, "kind": str, "block_bytes": int, "blocks": int, "bytes": int,
    "threads": int, "spin": bool, "verified": bool, "rounds": int, "gb_per_s": float,
    "gb_per_s_without_preparing": float, "p50_us": float, "p99_us": float, "jitter": float,
    "cpu_s_per_gb_prefill": float, "cpu_s_per_gb_decode": float, "turn_p50_us": list,
}
_RESULT = {
    "schema": int, "complete": bool, "date": str, "machine": dict, "versions": dict,
    "workload": dict, "titles": dict, "missing": list, "failed": list, "results": list,
    "ratios": list,
}


def problems(result):
    """What keeps `result` from being one whole result; empty when nothing does."""
    found = _mistyped(result, _RESULT, "the result")
    if found:
        return found
    if result["schema"] != SCHEMA:
        found.append(f"schema {result['schema']} instead of {SCHEMA}")
    if not result["complete"]:
        found.append("it is not complete")
    for row in result["results"]:
        found += _mistyped(row, _ROW, "a row")
    return found


def _mistyped(value, fields, what):
    return [f"{what} has no {name} of type {kind.__name__}" for name, kind in fields.items()
            if not isinstance(value, dict) or not isinstance(value.get(name), kind)]


def _size(count):
    for unit, factor in (("M", 1 << 20), ("K", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def table(header, rows):
    """A Markdown table; the first column is text, the others figures."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _by_contestant(rows):
    order = {}
    for row in rows:
        order.setdefault(row["contestant"], {})[row["block_bytes"]] = row
    return order


def _label(row):
    if row["kind"] == "raw":
        return f"*{row['contestant']}* (raw reference)"
    return f"**{row['contestant']}**" if row["kind"] == "kvxfer" else row["contestant"]


def _throughput(rows):
    sizes = sorted({row["block_bytes"] for row in rows})
    lines = []
    for by_size in _by_contestant(rows).values():
        any_row = next(iter(by_size.values()))
        line = [_label(any_row)]
        line += [f"{by_size[size]['gb_per_s_without_preparing']:.2f}" for size in sizes]
        for field in ("cpu_s_per_gb_prefill", "cpu_s_per_gb_decode"):
            line.append(" / ".join(f"{by_size[size][field]:.2f}" for size in sizes))
        lines.append(line)
    header = ["GB/s"] + [_size(size) for size in sizes]
    return table(header + ["CPU-s/GB prefill", "CPU-s/GB decode"], lines)


def _latency(rows):
    return table(
        ["4 KiB and answer", "p50 µs", "p99 µs", "p99/p50", "CPU µs a round"],
        [[_label(row), f"{row['p50_us']:.1f}", f"{row['p99_us']:.1f}", f"{row['jitter']:.2f}",
          f"{_cpu_us(row):.1f}"] for row in rows])


def _cpu_us(row):
    per_gb = row["cpu_s_per_gb_prefill"] + row["cpu_s_per_gb_decode"]
    return per_gb * row["bytes"] / 1e9 * 1e6


def _ratios(ratios):
    def figure(ratio, name):
        return f"{ratio[name]:.2f}" if name in ratio else "–"

    def before(ratio):
        return (f"{ratio['to_before']:.3f} [{ratio['to_before_low']:.3f}, "
                f"{ratio['to_before_high']:.3f}]")

    if any("to_before" in ratio for ratio in ratios):
        return table(["", "block", "× before [95 % interval]", "× raw reference"],
                     [[ratio["contestant"], _size(ratio["block_bytes"]), before(ratio),
                       figure(ratio, "to_raw")] for ratio in ratios])
    return table(
        ["", "block", "× raw reference", "× best peer", "best peer", "CPU, × raw reference",
         "p99/p50, × raw reference"],
        [[ratio["contestant"], _size(ratio["block_bytes"]), figure(ratio, "to_raw"),
          figure(ratio, "to_best_peer"), ratio.get("best_peer", "–"),
          figure(ratio, "cpu_to_raw"), figure(ratio, "jitter_to_raw")] for ratio in ratios])


def markdown(result, plots):
    """`plots`: files beside this one."""
    machine, work = result["machine"], result["workload"]
    text = ["# kvxfer, its peers and raw loops\n"]
    text.append(
        f"{result['date']}, {machine['cpus']} CPUs {machine['cpu']}"
        f"{' (virtual)' if machine['virtual'] else ''}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}; huge pages of shared memory: "
        f"{machine['huge_pages_shared']}; {work['total'] >> 20} MiB a round, "
        f"{work['turns']} turns of each contestant, in turn; load before the run "
        f"{work['load_before']:.2f}.\n")
    text.append("Versions: " + ", ".join(
        f"{name} {version}" for name, version in result["versions"].items()) + ".\n")
    for one in result["missing"]:
        text.append(f"Missing: {one['name']}: {one['reason']}.\n")
    for one in result["failed"]:
        text.append(f"**Failed, and not measured: {one['title']}** (`{one['group']}`): "
                    f"{one['reason']}.\n")
    text.append("How to read and repeat this: [docs/performance.md](../../docs/performance.md).\n")
    text += [f"![{name}]({name})\n" for name in plots]
    for group, title in result["titles"].items():
        rows = [row for row in result["results"] if row["group"] == group]
        if not rows:
            continue
        ping = rows[0]["blocks"] == 1
        text.append(f"## {title}\n")
        text.append(_latency(rows) if ping else _throughput(rows))
        ratios = [ratio for ratio in result["ratios"] if ratio["group"] == group]
        if ratios:
            text.append(_ratios(ratios))
    return "\n".join(text)


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def write(path, text):
    """All of it or nothing: written beside, then renamed."""
    beside = path + ".tmp"
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def write_json(path, result):
    """Refuses what is not one whole result."""
    found = problems(result)
    if found:
        raise ValueError("; ".join(found[:3]))
    # A row a line: a diff shows which rows changed.
    rows = {name: [json.dumps(row) for row in _rounded(result[name])]
            for name in ("results", "ratios")}
    head = json.dumps(_rounded({**result, "results": [], "ratios": []}), indent=1)
    for name, lines in rows.items():
        head = head.replace(f'"{name}": []',
                            f'"{name}": [\n  ' + ",\n  ".join(lines) + "\n ]")
    write(path, head + "\n")
