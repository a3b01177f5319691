"""How KvxferConnector finds out about engines, for several requests at once. None is started."""

import queue
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import kvxfer  # noqa: E402
from kvxfer.vllm.peers import CannotMeet, Peers  # noqa: E402
from kvxfer.vllm.reference import Worker  # noqa: E402
from kvxfer.vllm.stats import Stats  # noqa: E402

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
