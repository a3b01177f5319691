"""One vLLM engine as a process: JSON in lines on standard input and output. The first line out says
that the engine is up; then one line for each line in. The end of the input ends the engine, as a
server that is told to stop.

It is started by nursery.py and spoken to by engine_process.py. Its standard output is the protocol's
alone: what vLLM prints goes to standard error, which is the engine's log.
"""

import ctypes
import itertools
import json
import mmap
import multiprocessing
import os
import random
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.0005
# Labels that are the same in all metrics of one engine.
_OWN_LABELS = {"model_name", "engine"}


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


_shifts: list[mmap.mmap] = []
"""Never touched."""


def shift_memory() -> None:
    """Of what was forked. Else the caches of all engines and ranks would be at the same address, and
    who takes one for the other would go unnoticed."""
    _shifts.append(mmap.mmap(-1, mmap.PAGESIZE * random.SystemRandom().randrange(1, 1 << 18)))


def _summed(metrics: Iterable[Any]) -> dict[str, float]:
    """By name: the value of a counter or gauge, the sum of a histogram and, as NAME_count, how many
    were observed; over all labels and, where there are more than the engine's, for each set of them
    as NAME{LABEL=VALUE,...}."""
    found: dict[str, float] = {}
    for metric in metrics:
        labels = sorted(f"{k}={v}" for k, v in metric.labels.items() if k not in _OWN_LABELS)
        if hasattr(metric, "sum"):
            values = {"": metric.sum, "_count": metric.count}
        else:
            values = {"": metric.value if hasattr(metric, "value") else sum(metric.values)}
        for suffix, value in values.items():
            names = [metric.name + suffix]
            if labels:
                names.append(f"{names[0]}{{{','.join(labels)}}}")
            for name in names:
                found[name] = found.get(name, 0.0) + value
    return found


def _kv_groups(core: Any) -> list[dict[str, Any]]:
    """Of the KV cache: which layers share block ids, and which kind of attention they have."""
    return [
        {
            "spec": type(group.kv_cache_spec).__name__,
            "layers": list(group.layer_names),
            "block_size": group.kv_cache_spec.block_size,
        }
        for group in core.scheduler.kv_cache_config.kv_cache_groups
    ]


class _Engine:
    """vLLM's engine, in this process. It steps only inside of the methods."""

    def __init__(self, llm: Any) -> None:
        self.core = llm.llm_engine.engine_core.engine_core
        self.serving = False
        self._llm = llm
        self._engine = llm.llm_engine
        self._numbers = itertools.count()
        self._finished: list[dict[str, Any]] = []
        self._added: dict[str, float] = {}  # when, by name
        self._longest_step_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether vLLM's own loop would step: there are requests, or blocks that are kept for a
        connector, or the connector wants it."""
        return bool(self.core.scheduler.has_requests() or self.core.batch_queue)

    def step(self) -> None:
        """An engine in this process that only waits for blocks steps without a pause. On few cores
        that keeps its own handshake, and the other engine, from running: seconds instead of ms."""
        begin = time.monotonic()
        outputs = self._engine.step()
        self._longest_step_s = max(self._longest_step_s, time.monotonic() - begin)
        self._finished += [self._answer(output) for output in outputs if output.finished]
        if not outputs:
            time.sleep(_PAUSE_S)

    def add(self, request: dict[str, Any]) -> str:
        from vllm import SamplingParams

        name: str = request["name"] or f"request-{next(self._numbers)}"
        transfer = request["transfer"]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": transfer} if transfer else None,
        )
        self._added[name] = time.monotonic()
        self._engine.add_request(name, {"prompt_token_ids": request["prompt"]}, params)
        return name

    def reject(self, transfer: dict[str, Any]) -> None:
        """As vLLM's server, which has refused a request before its engine has seen it
        (AsyncLLM.notify_kv_transfer_request_rejected)."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        params = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": transfer})
        request = EngineCoreRequest(
            request_id=f"rejected-{next(self._numbers)}",
            prompt_token_ids=[0],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            abort_immediately=True,
        )
        self._engine.engine_core.add_request(request)

    def poll(self, for_s: float) -> list[dict[str, Any]]:
        """What has finished since the last poll; the first of them is waited for. Without a time it
        is one step."""
        end = time.monotonic() + for_s
        while not self._finished and self.busy:
            self.step()
            if time.monotonic() >= end:
                break
        finished, self._finished = self._finished, []
        return finished

    def generate(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """In the order of the requests. What else finishes meanwhile is left to poll()."""
        names = [self.add(request) for request in requests]
        while not set(names) <= {answer["name"] for answer in self._finished}:
            if not self.busy:
                raise RuntimeError("the engine has nothing to do, and requests have not finished")
            self.step()
        answers = {answer["name"]: answer for answer in self._finished}
        self._finished = [answer for answer in self._finished if answer["name"] not in names]
        return [answers[name] for name in names]

    def abort(self, names: list[str]) -> None:
        """No answer comes of them."""
        self._engine.abort_request(names)
        for name in names:
            self._added.pop(name, None)

    def idle(self, for_s: float) -> bool:
        end = time.monotonic() + for_s
        while self.busy and time.monotonic() < end:
            self.step()
        return not self.busy

    def longest_step(self) -> float:
        longest, self._longest_step_s = self._longest_step_s, 0.0
        return longest

    def free_blocks(self) -> int:
        return int(self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def metrics(self) -> dict[str, float]:
        return _summed(self._llm.get_metrics())

    def forget(self) -> bool:
        return bool(self._llm.reset_prefix_cache())

    def shutdown(self) -> None:
        self._engine.engine_core.shutdown()

    def _answer(self, output: Any) -> dict[str, Any]:
        return {
            "name": output.request_id,
            "tokens": list(output.outputs[0].token_ids),
            "reason": output.outputs[0].finish_reason,
            "transfer": output.kv_transfer_params,
            "seconds": time.monotonic() - self._added.pop(output.request_id),
        }


class Commands:
    """The lines of standard input. Not by way of sys.stdin, which hides from select() what it has
    read ahead."""

    def __init__(self) -> None:
        self._unread = b""

    def next(self, *, wait: bool) -> dict[str, Any] | None:
        """None: there is none yet. EOFError: there will be none."""
        while b"\n" not in self._unread:
            if not wait and not select.select([0], [], [], 0)[0]:
                return None
            chunk = os.read(0, 1 << 16)
            if not chunk:
                raise EOFError
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        command: dict[str, Any] = json.loads(line)
        return command


def _answer(engine: _Engine, command: dict[str, Any]) -> Any:
    match command["do"]:
        case "generate":
            return engine.generate(command["requests"])
        case "add":
            return engine.add(command["request"])
        case "reject":
            return engine.reject(command["transfer"])
        case "poll":
            return engine.poll(command["for_s"])
        case "abort":
            return engine.abort(command["names"])
        case "idle":
            return engine.idle(command["for_s"])
        case "serve":
            engine.serving = command["serve"]
            return None
        case "longest_step":
            return engine.longest_step()
        case "free_blocks":
            return engine.free_blocks()
        case "metrics":
            return engine.metrics()
        case "forget":
            return engine.forget()
    raise ValueError(f"unknown command {command['do']}")


def _serve(engine: _Engine, replies: Any) -> None:
    commands = Commands()
    while True:
        try:
            command = commands.next(wait=not (engine.serving and engine.busy))
        except EOFError:
            return
        if command is None:
            engine.step()
        else:
            replies.write(json.dumps(_answer(engine, command)) + "\n")


def import_vllm() -> Any:
    """vllm.LLM."""
    from vllm import LLM, ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    # Else vLLM starts a process that imports it all again, to look at the model.
    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
    return LLM


def _make_ranks_cheap() -> None:
    """Of an engine with several ranks. vLLM's CPU build spawns them: each imports vLLM again, and
    compiles what one rank alone does not need. They wait in a loop that keeps the GIL. On two cores
    both take most of a minute; what is forked from here has imported all, and sleeps."""
    import torch
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.v1.executor import multiproc_executor

    torch.compiler.set_stance("force_eager")
    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")
    shm_broadcast.sched_yield = lambda: time.sleep(_PAUSE_S)
    os.register_at_fork(after_in_child=shift_memory)


def run(config: dict[str, Any]) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = time.monotonic()
    make = import_vllm()
    if config["distributed_executor_backend"] == "mp":
        _make_ranks_cheap()
    engine = _Engine(make(**config))
    up = {
        "start_s": time.monotonic() - start,
        "nixl": getattr(sys.modules.get("nixl._api"), "__file__", None),
        "kv_groups": _kv_groups(engine.core),
        "free_blocks": engine.free_blocks(),
    }
    replies.write(json.dumps(up) + "\n")
    _serve(engine, replies)
    engine.shutdown()
