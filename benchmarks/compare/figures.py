"""From seconds of rounds to the figures of a row. Pure."""

import math
import statistics

from contestants import BEFORE_SUFFIX

GB = 1e9


def percentile(values, percent):
    """The smallest value that at least `percent` % of `values` do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


class Samples:
    """All counted rounds of one contestant at one case, turn by turn."""

    def __init__(self, bytes_per_round):
        self.bytes_per_round = bytes_per_round
        self.turns = []  # lists of seconds
        self.preparing_s = 0.0
        self.cpu_s = {"prefill": 0.0, "decode": 0.0}

    def add(self, answers):
        """The two sides' answers to one "rounds" order."""
        self.turns.append(answers["prefill"]["seconds"])
        self.preparing_s += answers["prefill"].get("preparing_s", 0.0)
        for role, answer in answers.items():
            self.cpu_s[role] += answer["cpu_s"]

    def turn_medians(self):
        return [statistics.median(turn) for turn in self.turns]

    def figures(self):
        seconds = [second for turn in self.turns for second in turn]
        total = self.bytes_per_round * len(seconds)
        p50, p99 = statistics.median(seconds), percentile(seconds, 99)
        bare = max(p50 - self.preparing_s / len(seconds), 1e-12)
        return {
            "rounds": len(seconds),
            "gb_per_s": self.bytes_per_round / p50 / GB,
            "gb_per_s_without_preparing": self.bytes_per_round / bare / GB,
            "p50_us": p50 * 1e6,
            "p99_us": p99 * 1e6,
            "jitter": p99 / p50,
            "cpu_s_per_gb_prefill": self.cpu_s["prefill"] / total * GB,
            "cpu_s_per_gb_decode": self.cpu_s["decode"] / total * GB,
            "turn_p50_us": [median * 1e6 for median in self.turn_medians()],
        }


def _same_case(rows, row):
    return [other for other in rows
            if (other["group"], other["block_bytes"]) == (row["group"], row["block_bytes"])]


def _times_faster(ours, theirs):
    """The median over the turns, each with its neighbour: what slows the machine for a while slows
    both and cancels out."""
    pairs = zip(ours["turn_p50_us"], theirs["turn_p50_us"])
    return statistics.median(their / our for our, their in pairs)


def paired(ours, theirs):
    """How many times as fast `ours` is as its neighbour in each turn: the geometric mean, and the ends
    of its 95 % confidence interval (normal, of the logarithms)."""
    logs = [math.log(their / our)
            for our, their in zip(ours["turn_p50_us"], theirs["turn_p50_us"])]
    mean = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def cpu_s_per_gb(row):
    return row["cpu_s_per_gb_prefill"] + row["cpu_s_per_gb_decode"]


def ratios(rows):
    """For every row of kvxfer: its ratios to the raw reference and to the best peer of its case.
    Above 1 kvxfer is faster. Jitter and CPU are kvxfer's divided by those of the raw reference:
    below 1 is better. The time that a peer takes to prepare a transfer does not count."""
    result = []
    for row in rows:
        if row["kind"] != "kvxfer":
            continue
        ratio = {"group": row["group"], "contestant": row["contestant"],
                 "block_bytes": row["block_bytes"]}
        others = _same_case(rows, row)
        for raw in (other for other in others if other["kind"] == "raw"):
            ratio["raw"] = raw["contestant"]
            ratio["to_raw"] = _times_faster(row, raw)
            ratio["cpu_to_raw"] = cpu_s_per_gb(row) / max(cpu_s_per_gb(raw), 1e-9)
            ratio["jitter_to_raw"] = row["jitter"] / raw["jitter"]
        for before in (other for other in others if other["kind"] == "before"):
            if before["contestant"] == row["contestant"] + BEFORE_SUFFIX:
                ratio["to_before"], ratio["to_before_low"], ratio["to_before_high"] = paired(
                    row, before)
        peers = [other for other in others if other["kind"] == "peer"]
        if peers:
            best = max(peers, key=lambda peer: peer["gb_per_s_without_preparing"])
            helped = best["gb_per_s_without_preparing"] / best["gb_per_s"]
            ratio["best_peer"] = best["contestant"]
            ratio["to_best_peer"] = _times_faster(row, best) / helped
        result.append(ratio)
    return result
