"""Two workers of engines as vLLM drives them, prefill and decode, in this process; no model."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import kvxfer
import kvxfer.vllm.worker
import numpy as np
import pytest
from fake_prefill import FakeTensor
from kvxfer.vllm.addresses import OwnAddress
from kvxfer.vllm.connector import KvxferConnector
from kvxfer.vllm.division import Division
from kvxfer.vllm.groups import Group
from kvxfer.vllm.kinds import TOKENS as WHOLE_TOKENS
from kvxfer.vllm.kinds import Kind
from kvxfer.vllm.log import logger
from kvxfer.vllm.place import Place
from kvxfer.vllm.reference import GroupBlocks, Reference, Worker
from kvxfer.vllm.settings import Settings
from kvxfer.vllm.step import Fetch, Held, Offer, Part, Returned, Step

HERE = OwnAddress("127.0.0.1", "127.0.0.1")
BLOCKS, HEADS, TOKENS, SIZE = 16, 2, 16, 8
LAYERS = tuple(f"model.layers.{number}.attn" for number in range(2))
GROUP = Group(TOKENS)
KIND = Kind(WHOLE_TOKENS, HEADS, SIZE, SIZE, "fp32", "float32")
DIVISION = Division(1, ((len(LAYERS),),))
LAST = 40
OURS, THEIRS = (GroupBlocks(0, (5, 2, 9)),), (Part(GroupBlocks(0, (3, 11, 4)), 0, LAST),)
PROMPT = "5ec2e7" * 5
LEASE_S = 30.0
TIMEOUT_S = 2.0
SOON_S = 1.0  # until blocks are back
LIMIT_S = 20.0


class Engine:
    """A worker of one."""

    def __init__(self, name: str, seed: int, **settings: Any) -> None:
        given = {"drain": 0.0, "lease": LEASE_S, "timeout": TIMEOUT_S} | settings
        self.worker = kvxfer.vllm.worker.WorkerSide(
            Settings(**given), name, HERE, [GROUP], lambda _: [dict.fromkeys(LAYERS, KIND)], 7, Place()
        )
        shape = (BLOCKS, HEADS, TOKENS, 2 * SIZE)
        self.caches = {layer: FakeTensor(shape) for layer in LAYERS}
        for number, cache in enumerate(self.caches.values()):
            cache.array[:] = np.random.default_rng(seed + number).random(shape, np.float32)
        # Its constructor wants a whole configuration of vLLM.
        self.connector = KvxferConnector.__new__(KvxferConnector)
        self.connector._scheduler = None
        self.connector._worker = self.worker
        self.connector._connector_metadata = None
        self.connector.register_kv_caches(cast(dict[str, Any], self.caches))
        address = self.worker.address()
        assert address is not None
        self.address: Worker = address.worker
        self.sent: dict[str, float] = {}
        """Requests whose blocks are free, and since when."""
        self.loaded: set[str] = set()
        self.failed: dict[str, float] = {}
        self.unsent = 0
        self.heard: list[Any] = []

    def step(self, step: Step | None = None) -> None:
        with self.forward(step or Step()):
            pass

    @contextlib.contextmanager
    def forward(self, step: Step) -> Iterator[None]:
        """A forward pass, as vLLM's KVConnectorModelRunnerMixin puts the connector's calls around it."""
        self.connector.bind_connector_metadata(step)
        try:
            yield
        finally:
            self.connector.start_load_kv(None)
            self.connector.wait_for_save()
            self._take(self.connector.get_transfer_results(set()))
            self.connector.clear_connector_metadata()

    def _take(self, results: Any) -> None:
        now = time.monotonic()
        self.sent |= dict.fromkeys(results.finished_sending or (), now)
        self.failed |= dict.fromkeys(results.failed_recving or (), now)
        self.loaded |= (results.finished_recving or set()) - (results.failed_recving or set())
        heard = self.worker.heard()
        if heard is not None:
            self.unsent += heard.unsent
            self.heard.append(heard)

    def tokens(self, layer: str, blocks: tuple[int, ...]) -> np.ndarray:
        content = self.caches[layer].array[list(blocks)].transpose(0, 2, 1, 3)
        return content.reshape(-1, HEADS, 2 * SIZE)[:LAST]


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    both = Engine("prefill", 1), Engine("decode", 11)
    yield both
    for engine in both:
        engine.worker.close()


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """Of the connector's log, from warnings on."""
    found: list[str] = []

    class _Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    keep = _Keep(logging.WARNING)
    logger.addHandler(keep)
    yield found
    logger.removeHandler(keep)


def until(holds: Callable[[], Any], *engines: Engine, limit: float = LIMIT_S) -> None:
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, "nothing becomes of it"
        for engine in engines:
            engine.step()
        time.sleep(0.001)


def same(prefill: Engine, decode: Engine) -> bool:
    return all(
        np.array_equal(
            prefill.tokens(layer, OURS[0].ids), decode.tokens(layer, THEIRS[0].blocks.ids)
        )
        for layer in LAYERS
    )


def reference_of(mode: str, prefill: Engine, transfer: str) -> Reference:
    return Reference(
        mode=mode,
        engine="prefill",
        transfer=transfer,
        tokens=LAST,
        fingerprint={"weights": "a"},
        workers=(prefill.address,),
        division=DIVISION,
        groups=OURS,
        block_tokens=(TOKENS,),
    )


def fetch(prefill: Engine, transfer: str, contents: str = PROMPT) -> Step:
    reference = reference_of("pull", prefill, transfer)
    return Step(fetches=[Fetch(f"there {transfer}", contents, reference, THEIRS)])


def hold(transfer: str) -> Step:
    return Step(held=[Held(f"here {transfer}", transfer, PROMPT, OURS, confirmed=True)])


def give_back(prefill: Engine, transfer: str) -> Step:
    return Step(returned=[Returned(transfer, (prefill.address,), DIVISION)])


def offer(prefill: Engine, decode: Engine, transfer: str, contents: str = PROMPT) -> Step:
    reference = reference_of("push", prefill, transfer)
    room = (decode.address,), DIVISION, (TOKENS,)
    return Step(offers=[Offer(f"there {transfer}", contents, reference, THEIRS, *room)])


def counts_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []
    read = kvxfer.Agent.read_blocks

    def count(agent: kvxfer.Agent, *arguments: Any, **options: Any) -> kvxfer.Transfer:
        reads.append(options["lease"])
        return read(agent, *arguments, **options)

    monkeypatch.setattr(kvxfer.Agent, "read_blocks", count)
    return reads


def meet(prefill: Engine, decode: Engine) -> None:
    prefill.step(hold("first"))
    decode.step(fetch(prefill, "first"))
    until(lambda: decode.loaded and prefill.sent, prefill, decode)
