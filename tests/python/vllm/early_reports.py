"""A connector to which each layer is reported before its tokens are there, and again when they are: as
with dual batch overlap, where the first microbatch reports a layer before the second has computed it."""

from kvxfer.vllm import KvxferConnector


class EarlyReports(KvxferConnector):
    def wait_for_layer_load(self, layer_name: str) -> None:
        self.save_kv_layer(layer_name, None, None)
        super().wait_for_layer_load(layer_name)
