"""KV caches: layouts of tensors, requests to a group, leases, and draining."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import kvxfer
import numpy as np
import pytest
from pairs import know, name

LAYERS, HEADS, SIZE, TOKENS, BLOCKS = 3, 4, 8, 16, 12
MODEL = kvxfer.KvModel(LAYERS, HEADS, SIZE, SIZE, "fp32", fingerprint=7)


class Worker:
    """An agent with a cache: a tensor a layer, [blocks, heads, tokens, K and V]."""

    def __init__(self, word: str, rank: int = 0, ranks: int = 1) -> None:
        self.agent = kvxfer.Agent(name(word))
        heads = HEADS // ranks
        self.layers = [np.zeros((BLOCKS, heads, TOKENS, 2 * SIZE), np.float32) for _ in range(LAYERS)]
        shard = kvxfer.KvShard(LAYERS, tp_rank=rank, tp_size=ranks)
        tensor = kvxfer.KvTensor.of(self.layers[0], "BHNC")
        layout = kvxfer.KvLayout.from_tensors(MODEL, shard, [tensor])
        assert (layout.blocks, layout.block_tokens, layout.tensor_count) == (BLOCKS, TOKENS, LAYERS)
        for layer in self.layers:
            self.agent.register_memory(layer)
        self.agent.register_kv_cache("kv", layout, self.layers)

    def fill(self, seed: int) -> None:
        for layer in self.layers:
            layer[:] = np.random.default_rng(seed).random(layer.shape, np.float32)
            seed += 1


@pytest.fixture
def workers() -> Iterator[tuple[Worker, list[Worker]]]:
    """Prefill on one rank, decode on two."""
    prefill, decode = Worker("prefill"), [Worker("decode", rank, 2) for rank in range(2)]
    prefill.fill(1)
    for worker in decode:
        know(prefill.agent, worker.agent)
    yield prefill, decode
    for worker in (prefill, *decode):
        worker.agent.close()


def equal(prefill: Worker, decode: list[Worker], ours: list[int], theirs: list[int]) -> bool:
    return all(
        np.array_equal(
            prefill.layers[layer][mine],
            np.concatenate([worker.layers[layer][block] for worker in decode], axis=0),
        )
        for layer in range(LAYERS)
        for mine, block in zip(ours, theirs)
    )


def test_a_request_is_written_to_both_ranks(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    group = [worker.agent.name for worker in decode]
    ours, theirs = [3, 5], np.array([7, 1], np.int64)
    prefill.agent.write_blocks(
        group, "kv", ours, theirs, 2 * TOKENS, request="request 7", notification=b"first token 9"
    ).wait(5)
    for worker in decode:
        told = worker.agent.wait_notification(5)
        assert (told.request, told.cache, told.payload) == ("request 7", "kv", b"first token 9")
        worker.agent.wait_layers("kv", "request 7", LAYERS, 5)
        assert worker.agent.count_kv().requests_whole == 1
    assert equal(prefill, decode, ours, [7, 1])


def test_layer_by_layer(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    group = [worker.agent.name for worker in decode]
    flags = [kvxfer.ReadyFlag() for _ in range(LAYERS)]
    transfers = [
        prefill.agent.write_blocks(
            group, "kv", [0], [2], TOKENS, first_layer=n, layers=1, request="r", ready=flag
        )
        for n, flag in enumerate(flags)
    ]
    with pytest.raises(kvxfer.TimedOut, match="0 of 1 layers"):
        decode[0].agent.wait_layers("kv", "r", 1, 0.05)
    for n, flag in enumerate(flags):
        flag.set()
        transfers[n].wait(5)
        decode[1].agent.wait_layers("kv", "r", n + 1, 5)
    assert equal(prefill, decode, [0], [2])


def test_layers_of_prepared_blocks(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    group = [worker.agent.name for worker in decode]
    ours, theirs = [3, 5], np.array([7, 1], np.int64)
    blocks = prefill.agent.prepare_blocks(group, "kv", ours, theirs, 2 * TOKENS)
    theirs[:] = 0  # read by that call alone
    flag = kvxfer.ReadyFlag()
    most = prefill.agent.write_layers(blocks, 1, None, request="r", notification=b"token")
    held = prefill.agent.write_layers(blocks, 0, request="r", notification=b"token", ready=flag)
    most.wait(5)
    assert not held.done()
    flag.set()
    held.wait(5)
    for worker in decode:
        told = worker.agent.wait_notification(5)
        assert (told.request, told.payload) == ("r", b"token")
    assert equal(prefill, decode, ours, [7, 1])


def test_what_is_not_there_any_more_is_named(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    group = [worker.agent.name for worker in decode]
    with pytest.raises(kvxfer.InvalidArgument, match="ids"):
        prefill.agent.prepare_blocks(group, "kv", [BLOCKS], [0], TOKENS)
    blocks = prefill.agent.prepare_blocks(group, "kv", [0], [2], TOKENS, first_layer=1, layers=1)
    with pytest.raises(kvxfer.InvalidArgument, match="1 to 1 are prepared"):
        prefill.agent.write_layers(blocks, 0)
    with pytest.raises(kvxfer.InvalidArgument, match="this agent has prepared"):
        decode[0].agent.write_layers(blocks, 1)
    with pytest.raises(TypeError):
        kvxfer.PreparedBlocks()  # type: ignore[call-arg]
    decode[1].agent.deregister_kv_cache("kv")
    know(prefill.agent, decode[1].agent)
    with pytest.raises(kvxfer.NotFound, match=decode[1].agent.name):
        prefill.agent.write_layers(blocks, 1)


def test_a_lease_is_fetched(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    prefill.agent.lease_blocks("kv", "lease 1", np.array([4, 6], np.uint32), hold=30)
    prefill.agent.renew_lease("lease 1", 60)
    for worker in decode:
        worker.agent.read_blocks(
            [prefill.agent.name], "kv", [0, 1], [4, 6], 2 * TOKENS, lease="lease 1"
        ).wait(5)
    event = _next_event(prefill.agent)
    assert (event.kind, event.name, event.end) == ("lease_ended", "lease 1", "consumed")
    assert equal(prefill, decode, [4, 6], [0, 1])
    with pytest.raises(kvxfer.AlreadyExists):
        prefill.agent.lease_blocks("kv", "lease 1", [4], hold=30)


def test_a_lease_is_read_by_those_who_say_what_it_holds(
    workers: tuple[Worker, list[Worker]],
) -> None:
    prefill, (first, second) = workers
    readers = [first.agent, second.agent]

    def read(reader: kvxfer.Agent, lease: str, contents: str, wait: float = 0.0) -> kvxfer.Transfer:
        return reader.read_blocks(
            [prefill.agent.name],
            "kv",
            [0],
            [4],
            TOKENS,
            lease=lease,
            lease_contents=contents,
            lease_wait=wait,
        )

    prefill.agent.lease_blocks("kv", "held", [4], hold=30, contents="a prompt")
    prefill.agent.lease_blocks("kv", "other", [5], hold=30, contents="a prompt")
    prefill.agent.lease_blocks("kv", "gone", [4], hold=30)
    prefill.agent.release_lease("gone")
    for lease, contents, refusal in [
        ("none", "a prompt", "unknown"),
        ("held", "another", "other_contents"),
        ("held", "", "other_contents"),
        ("other", "a prompt", "other_blocks"),
        ("gone", "", "ended"),
    ]:
        with pytest.raises(kvxfer.LeaseRefused) as caught:
            read(first.agent, lease, contents).wait(5)
        assert caught.value.refusal == refusal, lease
        assert lease in str(caught.value)
        assert isinstance(caught.value, kvxfer.FailedPrecondition)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.refusal) == (str(caught.value), refusal)

    reads = [read(reader, "late", "a prompt", 5) for reader in readers]
    until = time.monotonic() + 5
    while prefill.agent.count_kv().reads_waiting < len(reads):
        assert time.monotonic() < until
        time.sleep(0.001)
    prefill.agent.lease_blocks("kv", "late", [4], hold=30, contents="a prompt")
    for each in reads:
        each.wait(5)
    assert prefill.agent.count_kv().reads_waiting == 0


def _next_event(agent: kvxfer.Agent) -> kvxfer.KvEvent:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        event = agent.poll_kv_event()
        if event is not None:
            return event
        time.sleep(0.001)
    raise AssertionError("no event")


def test_a_lease_is_revoked_whoever_waits_to_read(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, decode = workers
    ids = [3, 1]
    prefill.agent.lease_blocks("kv", "revoked", ids, 30)
    prefill.agent.revoke_lease("revoked")
    event = prefill.agent.poll_kv_event()
    assert event is not None
    assert (event.name, event.end) == ("revoked", "released")
    transfer = decode[0].agent.read_blocks(
        [prefill.agent.name], "kv", [5, 7], ids, 2 * TOKENS, lease="revoked"
    )
    with pytest.raises(kvxfer.LeaseRefused) as refused:
        transfer.wait(10)
    assert refused.value.refusal == "ended"
    with pytest.raises(kvxfer.FailedPrecondition):
        prefill.agent.revoke_lease("revoked")
    with pytest.raises(kvxfer.NotFound):
        prefill.agent.revoke_lease("never granted")


def test_the_ranks_that_a_worker_has_to_do_with() -> None:
    second = kvxfer.KvShard(2, tp_rank=1, tp_size=2, first_layer=1)
    # Of four ranks in each of two stages with layers 0 to 1 and 2: heads 2 and 3, both stages.
    assert kvxfer.ranks_to_read(MODEL, second, 4, [0, 2]) == [2, 3, 6, 7]
    assert kvxfer.ranks_to_write(MODEL, second, 1, [0]) == [0]
    whole = kvxfer.KvShard(LAYERS)
    one_head = kvxfer.KvModel(LAYERS, 1, SIZE, SIZE)
    # One has the head for all, and the others are told that nobody reads from them.
    assert kvxfer.ranks_to_read(one_head, whole, 4, [0]) == [0, 1, 2, 3]
    assert kvxfer.ranks_to_write(one_head, kvxfer.KvShard(LAYERS, 1, 4), 1, [0]) == []
    for stages in ([], [1], [0, 0], [0, LAYERS]):
        with pytest.raises(kvxfer.InvalidArgument, match="ascend"):
            kvxfer.ranks_to_read(MODEL, whole, 1, stages)
    with pytest.raises(kvxfer.InvalidArgument):
        kvxfer.ranks_to_read(MODEL, whole, 3, [0])


def test_an_address_that_is_taken_has_a_reason() -> None:
    with kvxfer.Agent(name("first"), listen="127.0.0.1:0") as first:
        with pytest.raises(kvxfer.Error) as error:
            kvxfer.Agent(name("second"), listen=first.listen_address)
    assert error.value.reason == "address_in_use"
    with pytest.raises(kvxfer.Error) as error:
        kvxfer.Agent(name("third"), listen="192.0.2.1:0")
    assert error.value.reason == ""


def test_layouts_that_do_not_fit() -> None:
    shard = kvxfer.KvShard(LAYERS)
    for tensor, text in [
        (kvxfer.KvTensor("BHN", [1, 4, 16], [64, 16, 1]), "C"),
        (kvxfer.KvTensor.of(np.zeros((2, 3, 16, 16), np.float32), "BHNC"), "H"),
        (kvxfer.KvTensor.of(np.zeros((2, 4, 16, 15), np.float32), "BHNC"), "C"),
    ]:
        with pytest.raises(kvxfer.InvalidArgument, match=text):
            kvxfer.KvLayout.from_tensors(MODEL, shard, [tensor])


def test_a_cache_outside_of_memory() -> None:
    with kvxfer.Agent(name("outside")) as agent:
        tensor = np.zeros((2, 4, 16, 16), np.float32)
        layout = kvxfer.KvLayout.from_tensors(
            MODEL, kvxfer.KvShard(LAYERS), [kvxfer.KvTensor.of(tensor, "BHNC")]
        )
        with pytest.raises(kvxfer.InvalidArgument):
            agent.register_kv_cache("kv", layout, [tensor] * LAYERS)


def test_drain_waits_until_what_was_promised_is_fetched(
    workers: tuple[Worker, list[Worker]],
) -> None:
    prefill, decode = workers
    prefill.agent.lease_blocks("kv", "promised", [4], hold=30)

    def fetch() -> None:
        time.sleep(0.3)
        for worker in decode:
            worker.agent.read_blocks(
                [prefill.agent.name], "kv", [0], [4], TOKENS, lease="promised"
            ).wait(5)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    time.sleep(0.05)
    began = time.monotonic()
    draining = threading.Thread(target=prefill.agent.drain, args=(10,))
    draining.start()
    time.sleep(0.05)
    with pytest.raises(kvxfer.FailedPrecondition, match="being drained"):
        prefill.agent.notify(decode[0].agent.name, b"new work")
    with pytest.raises(kvxfer.FailedPrecondition, match="being drained"):
        prefill.agent.lease_blocks("kv", "another", [5], hold=1)
    draining.join(10)
    fetching.join(10)
    assert 0.15 < time.monotonic() - began < 5
    assert prefill.agent.closed and equal(prefill, decode, [4], [0])


def test_drain_says_what_is_left(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, _ = workers
    prefill.agent.lease_blocks("kv", "never fetched", [4], hold=30)
    with pytest.raises(kvxfer.TimedOut, match="1 KV leases that are not fetched"):
        prefill.agent.drain(0.2)
    assert prefill.agent.closed


def test_drain_of_a_lease_that_expires(workers: tuple[Worker, list[Worker]]) -> None:
    prefill, _ = workers
    prefill.agent.lease_blocks("kv", "expires", [4], hold=0.2)
    prefill.agent.drain(10)
    assert prefill.agent.closed
