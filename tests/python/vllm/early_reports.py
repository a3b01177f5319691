"""A connector to which each layer is reported before its tokens are computed, and again when they are: as
with dual batch overlap, where the first microbatch reports a layer before the second has computed it."""

import time
from typing import Any

from kvxfer.vllm import KvxferConnector
from kvxfer.vllm.step import Step
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.model_executor.models.utils import extract_layer_index

_AMPLE_S = 0.02  # for what leaves too early to be there before it is computed


class EarlyReports(KvxferConnector):
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        super().register_kv_caches(kv_caches)
        self._order = sorted(kv_caches, key=extract_layer_index)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._report(0)

    def save_kv_layer(self, layer_name: str, *arguments: Any, **more: Any) -> None:
        super().save_kv_layer(layer_name, *arguments, **more)
        self._report(self._order.index(layer_name) + 1)

    def _report(self, number: int) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        if step.writes and number < len(self._order):
            super().save_kv_layer(self._order[number], None, None)
            time.sleep(_AMPLE_S)
