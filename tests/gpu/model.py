#!/usr/bin/env python3
"""Compares a Llama whose prefill and decode are two processes with one process that does both.

    model.py [--device cuda:0] [--paths PATH...] [--small]

Prefill computes the KV cache of each prompt, puts it into scattered blocks of a paged cache in
memory of the device, and writes them by kvxfer; decode goes on from its blocks. Its tokens have to
be those that prefill's process finds when it goes on by itself, over each path; and other tokens
where nothing was moved. It needs kvxfer, torch and transformers. The last line is "N passed, N
failed".
Exit status: 0 all tokens are equal, or torch has no such device; 1 they are not, or something
failed.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

_PROMPTS = (1, 15, 16, 17, 130, 400, 1000, 1500)
_SMALL_PROMPTS = (1, 16, 130)
_DECODED = 32
_PATIENCE_S = 60.0
# Where kvxfer takes it: backends of the agents, and the path of transfers between host memory and
# between memory of a GPU.
_PATHS = {
    "cuda_ipc": (["cuda_ipc", "tcp"], "", "cuda_ipc"),
    "tcp": (["tcp"], "tcp", "tcp staged"),
    "shm": (["shm", "tcp"], "shm", "shm staged"),
}


class _NoDeviceError(Exception):
    pass


class _FailedError(Exception):
    pass


class _Side:
    """A process with the model and a paged cache. Each order is a method."""

    def __init__(self, device: str) -> None:
        # Not in the process that starts them: it needs neither.
        import torch  # noqa: PLC0415
        from llama import Llama, PagedCache, Shape  # noqa: PLC0415

        if "cuda" in device and not torch.cuda.is_available():
            raise _NoDeviceError(f"torch {torch.__version__} has no GPU")
        self._device = device
        shape = Shape()
        self._llama, self._cache = Llama(shape, device), PagedCache(shape, device)
        self._agent: Any = None
        self._peer, self._there = "", []

    def open(self, path: str, role: str) -> tuple[bytes, list]:
        import kvxfer  # noqa: PLC0415

        self._agent = kvxfer.Agent(f"{role}-{os.getpid()}-{path}", backends=_PATHS[path][0])
        for layer in self._cache.layers:
            self._agent.register_memory(layer)
        self._cache.clear()
        return self._agent.metadata(), self._cache.regions()

    def meet(self, metadata: bytes, regions: list) -> None:
        self._peer, self._there = self._agent.add_peer(metadata), regions

    def close(self) -> None:
        self._agent.close()

    def write(self, tokens: int, ours: list[int], theirs: list[int]) -> dict:
        """Prefill: a prompt's cache to the other side; then the tokens behind it."""
        cache, first = self._llama.prefill(tokens)
        self._cache.put(cache, ours)
        request = {"tokens": tokens, "ids": theirs, "first": first}
        transfer = self._agent.write(
            self._peer, self._cache.regions(), self._there, ours, theirs,
            notification=json.dumps(request).encode(), deadline=_PATIENCE_S, stream=self._stream(),
        )  # fmt: skip
        transfer.wait()
        decoded = self._llama.decode(cache, first, _DECODED)
        return {"decoded": decoded, "path": transfer.stats.path, "bytes": transfer.stats.bytes,
                "request": request}  # fmt: skip

    def read_on(self) -> list[int]:
        """Decode: the tokens behind the prompt that arrives next."""
        return self.go_on(json.loads(self._agent.wait_notification(_PATIENCE_S).payload))

    def go_on(self, request: dict) -> list[int]:
        cache = self._cache.take(request["ids"], request["tokens"])
        return self._llama.decode(cache, request["first"], _DECODED)

    def clear(self) -> None:
        self._cache.clear()

    def blocks_of(self, tokens: int) -> tuple[int, int]:
        return self._cache.blocks_of(tokens), self._cache.layers[0].shape[0]

    def _stream(self) -> Any:
        """The transfer begins behind what this process has put into its CUDA stream."""
        import torch  # noqa: PLC0415

        return torch.cuda.current_stream(self._device) if "cuda" in self._device else None


def _serve(connection: Any, device: str) -> None:
    try:
        side = _Side(device)
        connection.send(("done", None))
        while order := connection.recv():
            name, arguments = order
            connection.send(("done", getattr(side, name)(*arguments)))
    except EOFError:
        pass  # the other process has ended
    except _NoDeviceError as error:
        connection.send(("no device", str(error)))
    except Exception:  # whatever a library raises
        connection.send(("failed", traceback.format_exc()))


class _Process:
    def __init__(self, role: str, device: str) -> None:
        # CUDA does not survive fork.
        context = multiprocessing.get_context("spawn")
        self._role = role
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, device), daemon=True)
        self._process.start()
        theirs.close()

    def say(self, order: str, *arguments: Any) -> None:
        self._connection.send((order, arguments))

    def answer(self) -> Any:
        try:
            if not self._connection.poll(2 * _PATIENCE_S):
                raise _FailedError(f"{self._role} does not answer")
            word, answer = self._connection.recv()
        except EOFError:
            raise _FailedError(f"{self._role} ended with {self._process.exitcode}") from None
        if word == "no device":
            raise _NoDeviceError(answer)
        if word == "failed":
            raise _FailedError(f"{self._role}: {answer}")
        return answer

    def ask(self, order: str, *arguments: Any) -> Any:
        self.say(order, *arguments)
        return self.answer()


class _Pair:
    def __init__(self, device: str) -> None:
        self._gpu = "cuda" in device
        self._prefill, self._decode = _Process("prefill", device), _Process("decode", device)
        self._prefill.answer()
        self._decode.answer()

    def compare(self, path: str, prompts: tuple[int, ...]) -> str:
        """What is equal over a path. _FailedError: what is not."""
        begin, moved = time.monotonic(), 0
        self._prefill.ask("open", path, "prefill")
        self._prefill.ask("meet", *self._decode.ask("open", path, "decode"))
        for tokens in prompts:
            moved += self._request(path, tokens)
        self._prefill.ask("close")
        self._decode.ask("close")
        took = time.monotonic() - begin
        lengths = f"{len(prompts)} prompts of {prompts[0]} to {prompts[-1]} tokens"
        return f"{lengths}, {_DECODED} more: equal ({moved / 1e6:.1f} MB, {took:.1f} s)"

    def _request(self, path: str, tokens: int) -> int:
        count, blocks = self._prefill.ask("blocks_of", tokens)
        random_ids = random.Random(f"{path} {tokens}")
        ours, theirs = (random_ids.sample(range(blocks), count) for _ in range(2))
        self._decode.ask("clear")
        self._decode.say("read_on")
        wrote = self._prefill.ask("write", tokens, ours, theirs)
        decoded, expected = self._decode.answer(), wrote["decoded"]
        wanted = _PATHS[path][2 if self._gpu else 1]
        if wrote["path"] != wanted:
            raise _FailedError(f"went by way of {wrote['path']}, not {wanted}")
        if decoded != expected:
            at = next(i for i in range(_DECODED) if decoded[i] != expected[i])
            raise _FailedError(f"prompt of {tokens} tokens: token {at} is {decoded[at]} and not "
                               f"{expected[at]}")  # fmt: skip
        self._check_that_it_matters(wrote["request"], expected)
        return wrote["bytes"]

    def _check_that_it_matters(self, request: dict, expected: list[int]) -> None:
        """Equal tokens would say nothing about a model that ignores its cache."""
        self._decode.ask("clear")
        if self._decode.ask("go_on", request) == expected:
            raise _FailedError(f"{request['tokens']} tokens: the same without what was moved")


def _compare(paths: list[str], prompts: tuple[int, ...], device: str) -> tuple[int, int]:
    """How many paths passed, and failed."""
    passed = failed = 0
    pair: _Pair | None = None
    for path in paths:
        try:
            pair = pair or _Pair(device)
            word, text = "ok", pair.compare(path, prompts)
            passed += 1
        except _FailedError as error:
            word, text = "FAIL", str(error).strip().replace("\n", "\n         ")
            failed += 1
            pair = None  # its processes may have ended
        print(f"  {word:<4} {path:<42} {text}", flush=True)
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu; default cuda:0")
    parser.add_argument("--paths", nargs="+", choices=list(_PATHS),
                        help="default: all that the device has")  # fmt: skip
    parser.add_argument("--small", action="store_true", help="few and short prompts")
    options = parser.parse_args()
    paths = options.paths or [p for p in _PATHS if options.device != "cpu" or p != "cuda_ipc"]
    prompts = _SMALL_PROMPTS if options.small else _PROMPTS
    try:
        passed, failed = _compare(paths, prompts, options.device)
    except _NoDeviceError as error:
        print(f"skipped: {error}\n0 passed, 0 failed, 1 skipped")
        return 0
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
