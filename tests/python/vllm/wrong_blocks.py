"""A connector that puts what it loads into the wrong blocks of its own: what a test of equal tokens
must notice."""

import dataclasses

from kvxfer.vllm import KvxferConnector
from kvxfer.vllm.step import Step
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


class WrongBlocks(KvxferConnector):
    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(connector_metadata, Step)
        connector_metadata.fetches = [
            dataclasses.replace(
                fetch,
                parts=tuple(
                    dataclasses.replace(
                        part, blocks=dataclasses.replace(part.blocks, ids=part.blocks.ids[::-1])
                    )
                    for part in fetch.parts
                ),
            )
            for fetch in connector_metadata.fetches
        ]
        super().bind_connector_metadata(connector_metadata)
