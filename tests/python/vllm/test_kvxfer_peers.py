"""How KvxferConnector finds out about engines, for several requests at once. None is started."""

import contextlib
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import kvxfer  # noqa: E402
import kvxfer.vllm.peers  # noqa: E402
from kvxfer.vllm.division import Division  # noqa: E402
from kvxfer.vllm.descriptors import free_descriptors  # noqa: E402
from kvxfer.vllm.outbox import Outbox  # noqa: E402
from kvxfer.vllm.fetching import Fetching  # noqa: E402
from kvxfer.vllm.peers import CannotMeet, Peers  # noqa: E402
from kvxfer.vllm.reference import GroupBlocks, Reference, Worker  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.stats import Stats  # noqa: E402
from kvxfer.vllm.step import Fetch, Part  # noqa: E402

_LIMIT_S = 10.0
_WORKER = Worker("192.0.2.1:7000", "0" * 32)
_NAME = "prefill:0"


class _Network:
    """Who asks for a worker's metadata hears what the test answers, when it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.stats = Stats()
        agent: Any = SimpleNamespace(
            add_peer=lambda _metadata: _NAME,
            explain=lambda _name: SimpleNamespace(incarnation=_WORKER.incarnation),
        )
        self.peers = Peers(agent, 1.0, self.stats)
        self._answers: queue.SimpleQueue[Exception | bytes] = queue.SimpleQueue()
        monkeypatch.setattr(kvxfer, "fetch_metadata", self._fetch)

    def answer(self, answer: Exception | bytes) -> None:
        self._answers.put(answer)

    def meet(self, since: float) -> str:
        """One word for what Peers.meet says."""
        try:
            names = self.peers.meet([_WORKER], since)
        except CannotMeet:
            return "failed"
        return "waits" if names is None else names[0]

    def hear(self, since: float) -> str:
        """What it says in the end."""
        end = time.monotonic() + _LIMIT_S
        while (heard := self.meet(since)) == "waits":
            assert time.monotonic() < end, "nothing becomes of it"
            time.sleep(0.001)
        return heard

    def _fetch(self, _address: str, _timeout: float) -> bytes:
        self.asked += 1
        answer = self._answers.get(timeout=_LIMIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> _Network:
    return _Network(monkeypatch)


def test_who_waits_for_one_engine_hears_of_it_together(network: _Network) -> None:
    first = time.monotonic()
    assert network.meet(first) == "waits"
    second = time.monotonic()
    assert network.meet(second) == "waits"
    network.answer(kvxfer.DeadlineExceeded("it does not answer"))
    assert [network.hear(first), network.meet(second)] == ["failed", "failed"]
    assert network.asked == network.stats.data["failed_meetings"] == 1


def test_who_comes_later_asks_again_and_hides_nothing(network: _Network) -> None:
    """Not from those who have waited, and look only after the one who came later."""
    first = time.monotonic()
    assert network.meet(first) == "waits"
    network.answer(kvxfer.DeadlineExceeded("it does not answer"))
    assert network.hear(first) == "failed"
    later = time.monotonic()
    assert network.meet(later) == "waits"
    assert network.meet(first) == "failed"
    network.answer(b"metadata")
    assert [network.hear(later), network.meet(first)] == [_NAME, _NAME]
    assert (network.asked, network.stats.data["failed_meetings"]) == (2, 1)


def test_no_thread_is_left_for_a_meeting(network: _Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it hears so; the next one may have better luck."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        since = time.monotonic()
        with pytest.raises(CannotMeet, match=r"can't start new thread.*ulimit -u") as raised:
            network.peers.meet([_WORKER], since)
    assert _WORKER.address in str(raised.value)
    assert network.meet(since) == "failed"
    network.answer(b"metadata")
    assert network.hear(time.monotonic()) == _NAME
    assert (network.asked, network.stats.data["failed_meetings"]) == (1, 1)


def test_many_who_cannot_be_met_cost_no_step(
    network: _Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of one reference: as many as may be are met at once, and the others are not looked at."""
    looked_at: list[Worker] = []
    begin = Peers._begin

    def count(peers: Peers, worker: Worker, before: Any) -> Any:
        looked_at.append(worker)
        return begin(peers, worker, before)

    monkeypatch.setattr(Peers, "_begin", count)
    agent: Any = SimpleNamespace(incarnation="f" * 32)
    to_self: list[dict[str, Any]] = []
    outbox = Outbox(agent, network.peers, to_self.append)
    most = kvxfer.vllm.peers._MAX_UNDER_WAY
    workers = [Worker(f"192.0.2.1:{number}", f"{number:032x}") for number in range(1, 300)]
    message = {"do": "return", "lease": "a"}
    outbox.send([*workers, Worker("192.0.2.1:300", "f" * 32)], message)
    assert to_self == [message]  # whoever waits before it
    assert len(looked_at) == most + 1
    for _ in range(10):
        outbox.poll()
    assert len(looked_at) <= most + 1 + 10
    assert outbox.take_change() == len(workers)
    for _ in workers:
        network.answer(kvxfer.DeadlineExceeded("it does not answer"))
    left, end = len(workers), time.monotonic() + _LIMIT_S
    while left:
        assert time.monotonic() < end, "nothing becomes of it"
        outbox.poll()
        left += outbox.take_change()
        time.sleep(0.001)
    assert network.asked == len(workers)


# --- descriptors run out ---


class _Fleet:
    """Workers that can all be met at once; what is left of descriptors is what the test says, less what
    agents that are known take."""

    _EACH = 12

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
        self.connected: list[str] = []
        self.most = 0
        self.busy: set[str] = set()
        self.stats = Stats()
        self.refuse: list[Exception] = []
        self._limit = limit
        agent: Any = SimpleNamespace(
            add_peer=self._add, explain=self._explain, remove_peer=self.connected.remove
        )
        self.peers = Peers(agent, 1.0, self.stats, lambda: self.busy)
        monkeypatch.setattr(kvxfer, "fetch_metadata", self._fetch)
        monkeypatch.setattr(kvxfer.vllm.peers, "free_descriptors", self._free)
        monkeypatch.setattr(kvxfer.vllm.peers, "_IDLE_S", 0.0)

    def meet(self, number: int) -> str:
        worker = Worker(f"192.0.2.1:{number}", f"{number:032x}")
        end = time.monotonic() + _LIMIT_S
        since = time.monotonic()
        while (names := self.peers.meet([worker], since)) is None:
            assert time.monotonic() < end, "nothing becomes of it"
            time.sleep(0.001)
        return names[0]

    def _free(self) -> int:
        return self._limit - self._EACH * len(self.connected)

    def _fetch(self, address: str, _timeout: float) -> bytes:
        if self.refuse:
            raise self.refuse.pop()
        return address.encode()

    def _add(self, metadata: bytes) -> str:
        name = metadata.decode().rpartition(":")[2]
        self.connected.append(name)
        self.most = max(self.most, len(self.connected))
        return name

    def _explain(self, name: str) -> Any:
        return SimpleNamespace(incarnation=f"{int(name):032x}")


def test_idle_peers_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 descriptors, 60 peers one after the other: those that are used stay, the others make room."""
    fleet = _Fleet(monkeypatch, 256)
    fleet.busy = {"0", "1"}
    for number in range(60):
        assert fleet.meet(number) == str(number)
    assert fleet.most * fleet._EACH <= 256
    assert {"0", "1"} <= set(fleet.connected)
    assert fleet.meet(5) == "5"  # anew
    assert fleet.stats.data["failed_meetings"] == 0


def test_with_ample_descriptors_nobody_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = _Fleet(monkeypatch, 1 << 20)
    for number in range(60):
        fleet.meet(number)
    assert len(fleet.connected) == 60


def test_an_attempt_that_found_none_is_made_again_when_others_gave_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = _Fleet(monkeypatch, 1 << 20)
    fleet.meet(1)
    fleet.refuse = [kvxfer.ResourceExhausted("socket: Too many open files")]
    assert fleet.meet(2) == "2"
    assert fleet.connected == ["2"]
    assert fleet.stats.data["exhausted"] == 1


def test_without_any_that_is_idle_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = _Fleet(monkeypatch, 0)
    fleet.refuse = [kvxfer.ResourceExhausted("socket: Too many open files")] * 2
    with pytest.raises(CannotMeet, match=r"Too many open files.*ulimit -n, or LimitNOFILE") as raised:
        fleet.meet(1)
    assert "VLLM_HOST_IP" not in str(raised.value)
    assert len(fleet.refuse) == 1  # no second attempt
    assert fleet.stats.data["exhausted"] == fleet.stats.data["failed_meetings"] == 1


def test_a_load_that_found_none_is_not_retried() -> None:
    """It is counted, others give way for the next one, and the request falls to the policy."""
    error = kvxfer.ResourceExhausted("socket: Too many open files; raise the limit (ulimit -n)")
    ended = SimpleNamespace(
        done=lambda: True, quarantined=False, error=error, cancel=lambda: None, _drive=lambda _: None
    )
    asked: list[str] = []
    agent: Any = SimpleNamespace(read_blocks=lambda *_, **__: asked.append("read") or ended)
    peers: Any = SimpleNamespace(
        meet=lambda *_: [_NAME], name=lambda _: _NAME, let_idle_go=lambda: asked.append("let go")
    )
    outbox: Any = SimpleNamespace(send=lambda *_: asked.append("return"))
    stats = Stats()
    fetching = Fetching(agent, peers, outbox, Settings(), stats)
    division = Division(1, ((1,),))
    caches: Any = SimpleNamespace(
        between=lambda *_: {},
        stream=lambda: None,
        caches=[SimpleNamespace(group=0)],
        models=[kvxfer.KvModel(1, 1, 8, 8)],
        shards=[division.shard(0, 0)],
        division=division,
    )
    fetching.caches = caches
    blocks = GroupBlocks(0, (1,))
    reference = Reference("pull", "e", "t", 32, {}, (_WORKER,), division, (blocks,), (32,))
    fetching.begin(Fetch("r1", "lease", reference, (Part(blocks, 0, 32),)))
    assert fetching.poll() == (set(), {"r1"})
    assert asked == ["read", "let go", "return"]
    assert (stats.data["exhausted"], stats.data["retries"], stats.data["failed_loads"]) == (1, 0, 1)


_AGENTS = """
import sys, kvxfer
agents = [
    kvxfer.Agent(f"p{n}", listen="127.0.0.1:0", serve_metadata=True) for n in range(int(sys.argv[1]))
]
for each in agents:
    print(each.listen_address, each.incarnation, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _descriptors(number: int) -> Iterator[None]:
    """This process has so many more, and not one above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + number, hard))
    try:
        assert free_descriptors() == number
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_agents_than_there_are_descriptors_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real ones, of which each connection takes three or more: all are met, and hear what they are
    told."""
    monkeypatch.setattr(kvxfer.vllm.peers, "_IDLE_S", 0.01)
    number = 40
    command = [sys.executable, "-c", _AGENTS, str(number)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(command, text=True, **pipes) as others,  # type: ignore[call-overload]
        kvxfer.Agent("decode", listen="127.0.0.1:0") as agent,
        _descriptors(80),
    ):
        stats = Stats()
        peers = Peers(agent, 5.0, stats)
        for _ in range(number):
            worker = Worker(*others.stdout.readline().split())
            since, end = time.monotonic(), time.monotonic() + _LIMIT_S
            while (names := peers.meet([worker], since)) is None:
                assert time.monotonic() < end, "nothing becomes of it"
                time.sleep(0.001)
            agent.notify(names[0], b"here").wait(_LIMIT_S)
        assert stats.is_empty()
        others.stdin.close()
