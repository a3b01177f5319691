"""NIXL as a contestant, through its Python interface as inference servers use it.

The descriptors of both caches are prepared once (prep_xfer_dlist); every round makes a transfer of
them by index, posts it with a notification and polls its state, as NIXL wants it: the notification
leaves when the initiator finds the transfer complete. The decode side polls for it and answers.
--mode progress uses NIXL's progress thread (its default), no-progress does not. The runner chooses
the transport by UCX_TLS.

What it takes to be fastest differs: without the thread the polling is what moves the bytes, and must
not pause; with it polling steals the thread's CPU (round trips of 16 ms on two cores), so it naps.
"""

import base64
import logging
import time

import numpy as np

import driver

logging.disable(logging.WARNING)
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402 (quiet first)


NAP_S = 50e-6


class Nixl(driver.Contestant):
    def __init__(self, options):
        super().__init__(options)
        progress = options.mode == "progress"
        self.relax = (lambda: time.sleep(NAP_S)) if progress else (lambda: None)
        self.agent = nixl_agent(
            options.role,
            nixl_agent_config(enable_prog_thread=progress, backends=["UCX"]))
        self.agent.register_memory([(self.address, options.bytes, 0, "")], "DRAM")

    def hello(self):
        metadata = self.agent.get_agent_metadata()
        return {"metadata": base64.b64encode(metadata).decode(), "base": self.address}

    def meet(self, other):
        peer = self.agent.add_remote_agent(base64.b64decode(other["metadata"]))
        self.peer = peer.decode() if isinstance(peer, bytes) else peer
        self.remote_base = other["base"]
        self.agent.make_connection(self.peer)

    def _descriptors(self, base, block_bytes):
        count = self.memory.size // block_bytes
        rows = np.zeros((count, 3), dtype=np.uint64)
        rows[:, 0] = base + np.arange(count, dtype=np.uint64) * np.uint64(block_bytes)
        rows[:, 1] = block_bytes
        return self.agent.get_xfer_descs(rows, "DRAM")

    def prepare(self, block_bytes, source_ids, target_ids):
        if not self.prefill:
            return
        self.local = self.agent.prep_xfer_dlist("", self._descriptors(self.address, block_bytes))
        self.remote = self.agent.prep_xfer_dlist(
            self.peer, self._descriptors(self.remote_base, block_bytes))
        self.source_ids = np.asarray(source_ids, dtype=np.int32)
        self.target_ids = np.asarray(target_ids, dtype=np.int32)

    def _wait_notification(self):
        while not self.agent.get_new_notifs():
            self.relax()

    def round(self):
        if not self.prefill:
            self._wait_notification()
            self.agent.send_notif(self.peer, b"answer")
            return 0.0
        start = time.monotonic()
        handle = self.agent.make_prepped_xfer("WRITE", self.local, self.source_ids, self.remote,
                                              self.target_ids, b"written")
        prepared = time.monotonic()
        state = self.agent.transfer(handle)
        while state == "PROC":
            self.relax()
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise driver.Failure(f"the transfer ended as {state}")
        self._wait_notification()
        self.agent.release_xfer_handle(handle)
        return prepared - start


driver.run(Nixl)
