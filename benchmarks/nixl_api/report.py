"""The result as Markdown. Pure."""

SCHEMA = 1

_TITLES = {
    ("request", "known"): "A request, until decode knows that it is done",
    ("request", "told"): "A request, until prefill saw its notification",
    ("handshake", "all"): "Handshake: add_remote_agent, prep_xfer_dlist, one block read",
    ("first", "all"): "The first request of fresh agents, with the handshake",
    ("first", "known"): "The first request of fresh agents, without the handshake",
    ("answer", "answered"): "A write of 4 KiB with a notification, until its answer is there",
    ("scattered", "known"): "All blocks of a memory in random order, until decode knows it",
    ("submit_lists", "submit"): "100,000 descriptors of arrays, until transfer() returns",
    ("submit_indices", "submit"): "100,000 indices of prepared lists, until transfer() returns",
}
_PARTS = {
    "request": ("make", "post", "poll"),
    "handshake": ("create", "add", "prepare", "make", "post", "poll"),
    "first": ("create", "add", "prepare", "make", "post", "poll"),
    "answer": ("answered",),
    "scattered": ("make", "post", "poll"),
    "submit_lists": ("list", "make", "post", "known"),
    "submit_indices": ("make", "post", "known"),
}


def _table(header: list[str], lines: list[list[str]]) -> str:
    """The first column is text, the others figures."""
    text = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(text + ["| " + " | ".join(line) + " |" for line in lines]) + "\n"


def _time(us: float) -> str:
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def _label(row: dict) -> str:
    parts = [row["model"] if row["model"] != "strip" else "", row["how"]]
    if row["tokens"]:
        parts.insert(1, f"{row['tokens']} tokens")
    return ", ".join(part for part in parts if part)


def _met(row: dict) -> str:
    if row["met"] is None:
        return "–"
    goal = f"{row['goal']:g}{' ms' if row['goal_unit'] == 'ms' else ''}"
    return f"{goal} {'yes' if row['met'] else '**no**'}"


def _figures(rows: list[dict], names: list[str]) -> str:
    lines = []
    for row in rows:
        parts = {name: row["contestants"][name][row["figure"]] for name in names}
        lines.append(
            [_label(row)]
            + [f"{_time(parts[name]['p50_us'])} / {_time(parts[name]['p99_us'])}" for name in names]
            + [f"{row['ratio']:.2f}" if "ratio" in row else "–"]
            + [f"{row['ratio_p99']:.2f}" if "ratio_p99" in row else "–", _met(row)]
        )
    return _table(["µs, p50 / p99", *names, "to the best", "p99 to its", "goal"], lines)


def _where(rows: list[dict], ours: str) -> str:
    """What the parts of the drop-in's and the best NIXL's time are."""
    names = _PARTS[rows[0]["what"]]
    lines = []
    for row in rows:
        for name in filter(None, (ours, row.get("best"))):
            parts = row["contestants"][name]
            times = [_time(parts[part]["p50_us"]) for part in names]
            lines.append([f"{_label(row)}: {name}", *times])
    return _table(["µs, p50", *names], lines)


def markdown(result: dict) -> str:
    machine, load = result["machine"], result["load"]
    names = [one["name"] for one in result["contestants"]]
    ours = next((one["name"] for one in result["contestants"] if one["kind"] == "drop-in"), "")
    text = [
        "# kvxfer's drop-in and NIXL, by NIXL's Python interface\n",
        f"{result['date']}, {machine['cpus']} CPUs {machine['cpu']}"
        f"{' (virtual)' if machine['virtual'] else ''}, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}; memory: {result['memory']}; "
        f"{result['turns']} turns of each contestant, in turn; seed {result['seed']}; "
        f"load {load['before']:.2f} before, {load['after']:.2f} after.\n",
        "Versions: " + ", ".join(f"{k}: {v}" for k, v in result["versions"].items()) + ".\n",
    ]
    for (what, figure), title in _TITLES.items():
        rows = [row for row in result["rows"] if (row["what"], row["figure"]) == (what, figure)]
        if rows:
            text += [f"## {title}\n", _figures(rows, names)]
    if ours:
        text.append("## Where the time goes: the drop-in and the best NIXL\n")
        for what in _PARTS:
            figure = next(figure for of, figure in _TITLES if of == what)
            rows = [r for r in result["rows"] if (r["what"], r["figure"]) == (what, figure)]
            if rows:
                text += [f"### {_TITLES[what, figure]}\n", _where(rows, ours)]
    return "\n".join(text)
