"""`vllm serve` behind the example's proxy: prefill on one rank, decode on two."""

import json
import random
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Cluster, write_served_model
from tiny_model import VOCABULARY

_SEED = 40
_LENGTHS = (5, 32, 33, 100, 300, 700)


@pytest.fixture(scope="module", params=["pull", "push"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")
    folder = tmp_path_factory.mktemp("serve")
    write_served_model(folder / "model", 1)
    (folder / "logs").mkdir()
    cluster = Cluster(folder / "model", folder / "logs", request.param, "--tp-decode", "2")
    try:
        # In its first step vLLM runs a compiler, and its other ranks spin meanwhile: where they share
        # cores, their agents may not get a turn within connect_timeout. What is loaded then may fail.
        cluster.ask([2, 3, 4], 2)
        yield cluster
    finally:
        cluster.close()


def _prompts() -> dict[int, list[int]]:
    print(f"seed of the prompts: {_SEED}")
    randomness = random.Random(_SEED)
    return {n: [randomness.randrange(2, VOCABULARY) for _ in range(n)] for n in _LENGTHS}


def _until(what: Callable[[], bool], limit_s: float = 20.0) -> bool:
    end = time.monotonic() + limit_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_clients_get_what_one_engine_answers(cluster: Cluster) -> None:
    prompts = _prompts()
    before = cluster.metrics(cluster.decode_port)
    through = {n: cluster.ask(prompt, 12) for n, prompt in prompts.items()}
    streamed = {n: "".join(cluster.stream(prompt, 12)) for n, prompt in prompts.items()}
    alone = {n: cluster.ask(prompt, 12, cluster.prefill_port) for n, prompt in prompts.items()}
    assert through == alone
    assert streamed == alone

    now = cluster.metrics(cluster.decode_port)
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    # The first of each prompt has come over whole, the second but for the blocks that were there.
    hits = grown["vllm:external_prefix_cache_hits_total"]
    assert hits >= sum(_LENGTHS)
    assert grown["vllm:kvxfer_failed_loads_total"] == 0, cluster.complaints()
    assert grown["vllm:kvxfer_load_seconds_count"] >= 2 * len(_LENGTHS)  # of each of two workers


def test_many_at_once(cluster: Cluster) -> None:
    randomness = random.Random(_SEED + 1)
    prompts = [
        [randomness.randrange(2, VOCABULARY) for _ in range(randomness.randrange(1, 400))]
        for _ in range(16)
    ]
    got: dict[int, str] = {}

    def ask(index: int) -> None:
        got[index] = cluster.ask(prompts[index], 8)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = {i: cluster.ask(prompt, 8, cluster.prefill_port) for i, prompt in enumerate(prompts)}
    assert got == alone


def test_a_client_that_hangs_up_leaves_nothing(cluster: Cluster) -> None:
    prompt = _prompts()[300]
    for pieces in (1, 3):
        stream = cluster.stream(prompt, 600)
        for _ in range(pieces):
            next(stream)
        stream.close()
    for port in (cluster.prefill_port, cluster.decode_port):

        def at_rest(port: int = port) -> bool:
            metrics = cluster.metrics(port)
            return (
                metrics["vllm:num_requests_running"] == 0
                and metrics["vllm:kv_cache_usage_perc"] == 0
            )

        assert _until(at_rest), port
    assert cluster.ask(prompt, 4) == cluster.ask(prompt, 4, cluster.prefill_port)


_REFUSED: list[dict[str, Any]] = [
    *({"max_tokens": 5000}, {"max_tokens": -1}, {"temperature": -1}, {"logprobs": 9999}),
    *({"model": "unknown"}, {"n": 0}),
]


def test_what_decode_refuses_is_given_back(cluster: Cluster) -> None:
    """By the proxy, and where vLLM tells its connector, by decode."""
    prefill = cluster.prefill_port
    expired = cluster.metrics(prefill)["vllm:kvxfer_expired_leases_total"]
    for number, wrong in enumerate(_REFUSED):
        prompt = [2 + number, *_prompts()[100]]
        for through in ("proxy", "decode"):
            params = {}
            if through == "decode":
                asked = cluster.body(prompt, 1, kv_transfer_params={"do_remote_decode": True})
                with cluster.post(asked, prefill) as answer:
                    params = {"kv_transfer_params": json.load(answer)["kv_transfer_params"]}
            port = cluster.decode_port if through == "decode" else cluster.port
            begin = time.monotonic()
            with pytest.raises(urllib.error.HTTPError) as caught:
                cluster.post(cluster.body(prompt, 4, **(params | wrong)), port)
            assert 400 <= caught.value.code < 500, wrong

            def free() -> bool:
                return cluster.metrics(prefill)["vllm:kv_cache_usage_perc"] == 0

            assert _until(free), f"{wrong} through {through} holds blocks"
            print(f"{wrong} through {through}: free after {time.monotonic() - begin:.2f} s")
    assert cluster.metrics(prefill)["vllm:kvxfer_expired_leases_total"] == expired


def test_a_stream_ends_well_after_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    """The last: it ends the cluster."""
    prompt = _prompts()[100]
    alone = cluster.ask(prompt, 150, cluster.prefill_port)
    stream = cluster.stream(prompt, 150)
    text = next(stream)
    cluster.terminate()
    text += "".join(stream)
    assert text == alone
    cluster.wait()
