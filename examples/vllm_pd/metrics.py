"""What the proxy counts, as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from instances import Instance

_PREFIX = "kvxfer_proxy_"
_COUNTERS = {
    "requests_total": "Requests that have ended, by the status that the client got.",
    "flows_total": "Attempts, by way: pull, push, push_sequential (the prefill instance was not "
    "known yet), decode_only (not one prompt with one answer).",
    "broken_streams_total": "Streams that an instance failed after they had begun.",
    "retries_total": "Attempts that were made again, by the stage that had failed.",
    "failures_total": "Failures of instances, by stage, instance and kind.",
}


class Metrics:
    def __init__(self) -> None:
        self.running = 0
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTERS}

    def count(self, name: str, **labels: str) -> None:
        self._counts[name][_labels(labels)] += 1

    def text(self, instances: Iterable[Instance]) -> str:
        lines = []
        for name, help_text in _COUNTERS.items():
            lines += _head(name, "counter", help_text)
            lines += [f"{_PREFIX}{name}{k} {v}" for k, v in sorted(self._counts[name].items())]
        lines += _head("in_flight", "gauge", "Requests that are being answered.")
        lines.append(f"{_PREFIX}in_flight {self.running}")
        states = {_labels({"stage": each.stage, "instance": each.url}): each for each in instances}
        lines += _head("instance_in_flight", "gauge", "Requests that an instance has.")
        lines += [f"{_PREFIX}instance_in_flight{k} {v.in_flight}" for k, v in states.items()]
        lines += _head("instance_up", "gauge", "Whether an instance may be chosen.")
        lines += [f"{_PREFIX}instance_up{k} {int(v.healthy)}" for k, v in states.items()]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} {kind}"]


def _labels(labels: dict[str, str]) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, value in labels.items()
    }
    inner = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    return f"{{{inner}}}" if inner else ""
