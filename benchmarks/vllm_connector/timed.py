"""The two connectors, with a note of when each request was posted to its worker's half, and when the
engine was told that it is loaded: one line of JSON each, in the file that KVXFER_TEST_TIMED_LOADS names."""

import json
import os
import time
from typing import Any

from kvxfer.vllm import KvxferConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlConnector


class _Timed:
    """Before the connector in the order of its bases."""

    def start_load_kv(self, *arguments: Any, **options: Any) -> None:
        now = time.perf_counter()
        posted = self.__dict__.setdefault("_posted", {})
        for request in self._asked():
            posted[request] = now
        super().start_load_kv(*arguments, **options)  # type: ignore[misc]

    def get_transfer_results(self, finished: set[str]) -> Any:
        results = super().get_transfer_results(finished)  # type: ignore[misc]
        posted = self.__dict__.get("_posted", {})
        for request in results.finished_recving & posted.keys():
            took = time.perf_counter() - posted.pop(request)
            failed = request in results.failed_recving
            with open(os.environ["KVXFER_TEST_TIMED_LOADS"], "a", encoding="utf-8") as file:
                file.write(json.dumps({"request": request, "s": took, "failed": failed}) + "\n")
        return results

    def _asked(self) -> list[str]:
        raise NotImplementedError


class TimedKvxfer(_Timed, KvxferConnector):
    def _asked(self) -> list[str]:
        step: Any = self._get_connector_metadata()
        return [fetch.request for fetch in step.fetches]


class TimedNixl(_Timed, NixlConnector):
    def _asked(self) -> list[str]:
        metadata: Any = self._get_connector_metadata()
        return [name for name, meta in metadata.reqs_to_recv.items() if meta.local_block_ids]
