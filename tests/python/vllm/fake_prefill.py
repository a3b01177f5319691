"""A prefill engine to a decode engine's connector, without vLLM, which ten times over would not fit
on a small machine: `fake_prefill.py PARENT_PID CONFIG`, JSON in lines as engine_child.py. CONFIG
has the decode engine's fingerprint, and how many tokens a block has. The KV of every prompt is
zeros: what is generated from it means nothing.
"""

import json
import os
import secrets
import sys
import threading
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import kvxfer
import numpy as np
from engine_child import Commands, die_with
from kvxfer.vllm import messages
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.fingerprint import model_number
from kvxfer.vllm.groups import Group
from kvxfer.vllm.kinds import HEADS, Kind
from kvxfer.vllm.place import Place
from kvxfer.vllm.reference import KEY, GroupBlocks, Reference, Worker, contents_of, prompt_hash
from tiny_model import HEAD_SIZE, KV_HEADS, LAYERS

_BLOCKS = 256
_LEASE_S = 30.0


class FakeTensor:
    """What the connector wants to know of a torch.Tensor."""

    device = SimpleNamespace(type="cpu", index=None)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.array = np.zeros(shape, np.float32)

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return self.array.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> "FakeTensor":
        return self

    def nbytes(self) -> int:
        return self.array.nbytes


class _Prefill:
    def __init__(self, name: str, fingerprint: dict[str, str], block_tokens: int) -> None:
        self._name = name
        self._fingerprint = fingerprint
        self._block_tokens = block_tokens
        self._block = count()
        self._agent = kvxfer.Agent(name, listen="127.0.0.1:0", serve_metadata=True)
        layers = tuple(f"model.layers.{number}.attn" for number in range(LAYERS))
        shape = (_BLOCKS, KV_HEADS, block_tokens, 2 * HEAD_SIZE)
        tensors = cast(dict[str, Any], {layer: FakeTensor(shape) for layer in layers})
        kind = Kind(HEADS, KV_HEADS, block_tokens * 2 * HEAD_SIZE * 4, 0, "bytes", "float32")
        self._caches = RegisteredCaches(
            self._agent,
            [Group(block_tokens)],
            [dict.fromkeys(layers, kind)],
            tensors,
            Place(),
            model_number(fingerprint),
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def hold(self, prompt: list[int]) -> dict[str, Any]:
        """kv_transfer_params of a prompt, as if it were computed."""
        transfer = secrets.token_hex(12)
        request = cast(Any, SimpleNamespace(prompt_token_ids=prompt))
        wanted = -(-len(prompt) // self._block_tokens)
        blocks = tuple(next(self._block) % _BLOCKS for _ in range(wanted))
        groups, sizes = (GroupBlocks(0, blocks),), (self._block_tokens,)
        contents = contents_of(prompt_hash(request, len(prompt)), groups, sizes)
        self._agent.lease_blocks(
            self._caches.caches[0].name, _of_cache(transfer), blocks, _LEASE_S, contents=contents
        )
        reference = Reference(
            mode="pull",
            engine=self._name,
            transfer=transfer,
            tokens=len(prompt),
            fingerprint=self._fingerprint,
            workers=(Worker(self._agent.listen_address, self._agent.incarnation),),
            division=self._caches.division,
            groups=groups,
            block_tokens=sizes,
        )
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._name,
            KEY: reference.to_params(),
        }

    def _listen(self) -> None:
        reader = messages.Reader()
        while True:
            told = self._agent.wait_notification()
            message = reader.read(told.peer, told.payload) or {}
            try:
                match message.get("do"):
                    case "renew":
                        self._agent.renew_lease(_of_cache(message["lease"]), _LEASE_S)
                    case "return":
                        self._agent.release_lease(_of_cache(message["lease"]))
            except kvxfer.Error:
                pass  # it has ended before


def _of_cache(lease: str) -> str:
    """The lease of the one cache's blocks; kvxfer.vllm.holding, which says so, imports vLLM."""
    return f"{lease}/0"


def main() -> None:
    die_with(int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prefill = _Prefill(**json.loads(sys.argv[2]))
    replies.write(json.dumps({}) + "\n")
    commands = Commands()
    while True:
        try:
            command = commands.next(wait=True)
        except EOFError:
            return
        assert command is not None
        replies.write(json.dumps([prefill.hold(prompt) for prompt in command["prompts"]]) + "\n")


if __name__ == "__main__":
    main()
