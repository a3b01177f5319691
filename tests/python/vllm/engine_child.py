"""One vLLM engine as a process: `engine_child.py PARENT_PID CONFIG`, JSON in lines on standard
input and output. The first line out says that the engine is up; then one line for each line in.

It is started and spoken to by engine_process.py. Its standard output is the protocol's alone: what
vLLM prints goes to standard error, which is the engine's log.
"""

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
# What a test compares: the value of a counter or gauge, the sum of a histogram.
_METRICS = {
    "vllm:prefix_cache_hits": "local_tokens",
    "vllm:external_prefix_cache_hits": "external_tokens",
    "vllm:kv_cache_usage_perc": "cache_usage",
    "vllm:nixl_bytes_transferred": "bytes",
    "vllm:nixl_num_failed_transfers": "failed_transfers",
    "vllm:nixl_num_failed_notifications": "failed_notifications",
    "vllm:nixl_num_kv_expired_reqs": "expired_requests",
}


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _metrics(llm: Any) -> dict[str, float]:
    found = dict.fromkeys(_METRICS.values(), 0.0)
    found["transfers"] = 0
    for metric in llm.get_metrics():
        if metric.name in _METRICS:
            value = metric.sum if hasattr(metric, "sum") else metric.value
            found[_METRICS[metric.name]] += value
        if metric.name == "vllm:nixl_bytes_transferred":
            found["transfers"] += metric.count
    return found


def _generate(llm: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    outputs = llm.generate(
        [{"prompt_token_ids": request["prompt"]} for request in requests],
        [
            SamplingParams(
                temperature=0.0,
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                detokenize=False,
                extra_args={"kv_transfer_params": request["transfer"]}
                if request["transfer"]
                else None,
            )
            for request in requests
        ],
        use_tqdm=False,
    )
    return [
        {"tokens": list(output.outputs[0].token_ids), "transfer": output.kv_transfer_params}
        for output in outputs
    ]


def _step_with_pauses(engine: Any) -> None:
    """An engine in this process that only waits for blocks steps without a pause. On few cores that
    keeps its own handshake, and the other engine, from running: seconds instead of a few ms."""
    step = engine.step

    def paused() -> Any:
        outputs = step()
        if not outputs:
            time.sleep(0.0005)
        return outputs

    engine.step = paused


def _answer(llm: Any, command: dict[str, Any]) -> Any:
    match command["do"]:
        case "generate":
            return _generate(llm, command["requests"])
        case "metrics":
            return _metrics(llm)
        case "forget":
            return llm.reset_prefix_cache()
    raise ValueError(f"unknown command {command['do']}")


def main() -> None:
    _die_with(int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = time.monotonic()

    from vllm import LLM, ModelRegistry
    from vllm.model_executor.models.llama import LlamaForCausalLM

    # Else vLLM starts a process that imports it all again, to look at the model.
    ModelRegistry.register_model("LlamaForCausalLM", LlamaForCausalLM)
    imported = time.monotonic()
    llm = LLM(**json.loads(sys.argv[2]))
    _step_with_pauses(llm.llm_engine)
    up = {"import_s": imported - start, "start_s": time.monotonic() - imported}
    up["nixl"] = getattr(sys.modules.get("nixl._api"), "__file__", None)
    replies.write(json.dumps(up) + "\n")
    for line in sys.stdin:
        replies.write(json.dumps(_answer(llm, json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
