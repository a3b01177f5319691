"""Mooncake's transfer engine over TCP as a contestant, through its Python interface.

The initiator learns that a batch is done; the target is told nothing of it but through the engine's
notifications, which its application polls for. Batches of thousands of blocks end in connection
resets, so a round is cut into batches of BATCH blocks, one after the other, as they must be: the
last one carries the notification.
"""

import mmap
import os
import time

import numpy as np

import driver

os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("MC_FORCE_TCP", "true")
from mooncake.engine import (TransferEngine, TransferNotify,  # noqa: E402 (reads them)
                             TransferOpcode)

BATCH = 1024


class Mooncake(driver.Contestant):
    def __init__(self, options):
        super().__init__(options)
        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise driver.Failure("the engine could not be initialized")
        self.word = np.zeros(mmap.PAGESIZE, dtype=np.uint8)
        for memory in (self.memory, self.word):
            if self.engine.register_memory(memory.ctypes.data, memory.size):
                raise driver.Failure("memory could not be registered")

    def hello(self):
        return {"session": f"127.0.0.1:{self.engine.get_rpc_port()}", "base": self.address,
                "word": self.word.ctypes.data}

    def meet(self, other):
        self.peer, self.remote_base = other["session"], other["base"]
        self.answer = ([self.word.ctypes.data], [other["word"]], [8])

    def prepare(self, block_bytes, source_ids, target_ids):
        # The engine's own threads move the bytes: who polls for the end must leave them the CPU.
        self.nap = 1e-3 if len(source_ids) > 1 else 20e-6
        self.batches = []
        for first in range(0, len(source_ids), BATCH):
            source, target = source_ids[first:first + BATCH], target_ids[first:first + BATCH]
            self.batches.append(([self.address + i * block_bytes for i in source],
                                 [self.remote_base + i * block_bytes for i in target],
                                 [block_bytes] * len(source)))

    def _send(self, batch, notification):
        arguments = (self.peer, *batch, TransferOpcode.Write)
        done = self.engine.batch_transfer_sync(*arguments, notification)
        if done != 0:
            raise driver.Failure(f"a batch of {len(batch[0])} blocks ended with {done}")

    def _await(self):
        while not self.engine.get_notifies():
            time.sleep(self.nap)

    def round(self):
        if self.prefill:
            for batch in self.batches[:-1]:
                self._send(batch, None)
            self._send(self.batches[-1], TransferNotify("prefill", "written"))
            self._await()
        else:
            self._await()
            # The answer is a transfer of one word; the engine has no message by itself.
            self._send(self.answer, TransferNotify("decode", "answer"))
        return 0.0


driver.run(Mooncake)
