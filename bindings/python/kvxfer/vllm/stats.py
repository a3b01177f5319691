"""What happened since the scheduler last asked, and vLLM's Prometheus metrics of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.v1.metrics.utils import create_metric_per_engine

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT

_HISTOGRAMS: dict[str, tuple[str, list[float]]] = {
    "load_seconds": (
        "From when the blocks of a request were asked for to when they were all there.",
        [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0],
    ),
    "load_bytes": (
        "Bytes that one worker has loaded for a request.",
        [float(1 << shift) for shift in range(10, 36, 2)],
    ),
}
_COUNTERS = {
    "failed_loads": "Requests whose blocks could not be loaded from the prefill engine.",
    "refused_references": "Requests whose reference was lost, altered, or of another model.",
    "retries": "Transfers that were made again after a connection failed.",
    "failed_meetings": "Engines that could not be reached, by attempts.",
    "exhausted": "Transfers and meetings that failed because open files (ulimit -n) or queues ran out.",
    "expired_leases": "Prefill: requests whose blocks nobody has fetched in time.",
    "failed_pushes": "Prefill: requests whose blocks could not be written to the decode engine.",
}


class Stats(KVConnectorStats):
    """``data`` has a list of observations for each histogram, a number for each counter."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {name: [] for name in _HISTOGRAMS} | dict.fromkeys(_COUNTERS, 0)

    def observe(self, name: str, value: float) -> None:
        self.data[name].append(value)

    def count(self, name: str) -> None:
        self.data[name] += 1

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def take(self) -> Stats | None:
        if self.is_empty():
            return None
        taken = Stats(self.data)
        self.reset()
        return taken

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data[name] + value
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds, size = self.data["load_seconds"], sum(self.data["load_bytes"])
        said: dict[str, int | float] = {"Loads": len(seconds)}
        if seconds:
            ordered = sorted(seconds)
            said["Median load (ms)"] = round(ordered[len(ordered) // 2] * 1e3, 3)
            said["P99 load (ms)"] = round(ordered[len(ordered) * 99 // 100] * 1e3, 3)
            said["MB per load"] = round(size / len(seconds) / 1e6, 3)
        said |= {
            name.replace("_", " ").capitalize(): self.data[name]
            for name in _COUNTERS
            if self.data[name]
        }
        return said


class PromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._histograms = {}
        for name, (documentation, buckets) in _HISTOGRAMS.items():
            histogram = self._histogram_cls(
                name=f"vllm:kvxfer_{name}",
                documentation=documentation,
                buckets=buckets,
                labelnames=labelnames,
            )
            self._histograms[name] = create_metric_per_engine(histogram, per_engine_labelvalues)
        self._counters = {}
        for name, documentation in _COUNTERS.items():
            counter = self._counter_cls(
                name=f"vllm:kvxfer_{name}", documentation=documentation, labelnames=labelnames
            )
            self._counters[name] = create_metric_per_engine(counter, per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, histograms in self._histograms.items():
            for value in transfer_stats_data[name]:
                histograms[engine_idx].observe(value)
        for name, counters in self._counters.items():
            if transfer_stats_data[name]:
                counters[engine_idx].inc(transfer_stats_data[name])
