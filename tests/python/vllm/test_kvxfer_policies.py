"""KvxferConnector in pairs that are set otherwise: what fails by policy, what is refused at the start."""

import contextlib
import dataclasses
import importlib.metadata
import socket
from pathlib import Path
from typing import Any

import pytest
from conversation import Conversation, counted, make_prompts
from engine import Request, wait_for
from engine_pair import KVXFER, Connector, Pair, StartPair
from engine_process import EngineError


def _serving(pair: Pair) -> Pair:
    for engine in pair.engines:
        engine.serve()
    return pair


def test_wrong_blocks_give_other_tokens(start_pair: StartPair) -> None:
    """Else equal tokens would say nothing of the KV that they are computed from."""
    wrong = dataclasses.replace(KVXFER, name="WrongBlocks", module="wrong_blocks")
    pair = _serving(start_pair(KVXFER, decode=wrong))
    talk = Conversation(pair, make_prompts(31, {"negative": 150}))
    assert talk.decode(talk.prefill("negative")) != talk.expected("negative")


def test_policy_fail_ends_the_request_and_no_other(start_pair: StartPair) -> None:
    failing = dataclasses.replace(
        KVXFER, on_load_failure="fail", extra={"host": "127.0.0.1", "lease": 2, "timeout": 2}
    )
    pair = _serving(start_pair(failing))
    talk = Conversation(pair, make_prompts(32, {"first": 150, "second": 90}))
    for spoil in ({"transfer": "0" * 24}, {"version": 7}, {"workers": [["127.0.0.1:1", "0" * 32]]}):
        transfers = talk.prefill("first", "second")
        transfers["first"]["kvxfer"].update(spoil)
        requests = [talk.request(name, transfers[name]) for name in transfers]
        first, second = pair.decode.generate(*requests)
        assert (first.reason, first.tokens) == ("error", []), spoil
        assert second.tokens == talk.alone["second"]
        for engine in pair.engines:
            assert engine.idle(10)
            assert engine.free_blocks() == engine.wait_until_up()["free_blocks"]
            assert engine.forget()


def test_blocks_are_there_before_decode_can_ask_for_them(start_pair: StartPair) -> None:
    """However long prefill's next step takes, a compilation or an unchunked prompt: here nobody lets the
    engine step."""
    failing = dataclasses.replace(
        KVXFER,
        on_load_failure="fail",
        extra={"host": "127.0.0.1", "lease": 2, "timeout": 5, "handshake_timeout": 2},
    )
    pair = start_pair(failing)
    talk = Conversation(pair, make_prompts(34, {"late": 150}))
    transfers = talk.prefill("late")
    pair.decode.serve()
    pair.decode.add(talk.request("late", transfers["late"]))
    (answer,) = wait_for([pair.decode], {"late"}).values()
    assert (answer.reason, answer.tokens) == ("length", talk.alone["late"])
    assert counted(pair.decode)["vllm:kvxfer_retries"] == 0
    pair.prefill.serve()
    assert pair.prefill.idle(10)

    # Several answers to one prompt, as vLLM makes requests of them: from one lease, or none of them.
    pair.decode.forget()
    for spoil, reason in (({}, "length"), ({"transfer": "0" * 24}, "error")):
        (transfer,) = talk.prefill("late").values()
        transfer["kvxfer"].update(spoil)
        before = pair.decode.metrics()
        names = {f"{number} of {reason}" for number in range(4)}
        for name in names:
            pair.decode.add(dataclasses.replace(talk.request("late", transfer), name=name))
        answers = wait_for([pair.decode], names)
        assert {each.reason for each in answers.values()} == {reason}
        if reason == "length":
            assert all(each.tokens == talk.alone["late"] for each in answers.values())
            assert counted(pair.decode, before)["vllm:kvxfer_load_seconds_count"] == 1
        for engine in pair.engines:
            assert engine.idle(10)
            assert engine.free_blocks() == engine.wait_until_up()["free_blocks"]
            assert engine.forget()


def test_the_name_suffices_where_the_package_is_installed(start_pair: StartPair) -> None:
    try:
        importlib.metadata.version("kvxfer")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("kvxfer is not installed: tests/python/python-tests build does it")
    engine = start_pair.alone(dataclasses.replace(KVXFER, module=""))
    (answer,) = engine.generate(Request([5, 6, 7], 1, {"do_remote_decode": True}))
    assert answer.transfer
    assert answer.transfer["kvxfer"]["mode"] == "pull"


class _WithAStore(Connector):
    """A MultiConnector of KvxferConnector and a second one, which finds nothing."""

    def config(self, role: str, engine_id: str) -> dict[str, Any]:
        own = KVXFER.config(role, engine_id)
        own.pop("engine_id")  # a part has that of the whole
        store = {
            "kv_connector": "ExampleConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": self.extra["store"]},
        }
        return super().config(role, engine_id) | {
            "kv_connector_extra_config": {"connectors": [own, store]}
        }


def test_beside_a_second_connector(start_pair: StartPair, tmp_path: Path) -> None:
    both = _WithAStore("MultiConnector", extra={"store": str(tmp_path)})
    pair = _serving(start_pair(both, disable_hybrid_kv_cache_manager=True))
    talk = Conversation(pair, make_prompts(33, {"a": 150, "b": 64, "c": 33}))
    before = pair.decode.metrics()
    assert talk.decode(talk.prefill("a", "b", "c")) == talk.expected("a", "b", "c")
    assert counted(pair.decode, before)["vllm:kvxfer_load_seconds_count"] == 3
    for engine in pair.engines:
        assert engine.idle(10)
        assert engine.free_blocks() == engine.wait_until_up()["free_blocks"]


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"prot": 1}, "prot is not known; there are"),
        ({"backends": ["tcp", "warp"]}, "warp"),
        ({"agent_options": {"advertise": "0.0.0.0"}}, "which cannot be connected to"),
    ],
    ids=["an option that is not known", "a backend that is none", "an address for nobody"],
)
def test_what_cannot_be_is_refused_at_the_start(
    start_pair: StartPair, extra: dict[str, Any], says: str
) -> None:
    """test_kvxfer_settings.py, test_kvxfer_supported.py and test_kvxfer_addresses.py have the others."""
    connector = dataclasses.replace(KVXFER, extra={"host": "127.0.0.1"} | extra)
    engine = start_pair.alone(connector)
    with pytest.raises(EngineError):
        engine.wait_until_up()
    assert says in engine.log_tail(400)


def _take_a_port_before_a_free_one() -> socket.socket:
    while True:
        taken, free = socket.socket(), socket.socket()
        taken.bind(("127.0.0.1", 0))
        with free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", taken.getsockname()[1] + 1))
            taken.listen()
            return taken
        taken.close()


def test_taken_ports_are_named_and_a_range_is_searched(start_pair: StartPair) -> None:
    with _take_a_port_before_a_free_one() as taken:
        port = taken.getsockname()[1]
        both = {"host": "127.0.0.1", "port_range": f"{port}-{port + 1}"}
        engine = start_pair.alone(dataclasses.replace(KVXFER, extra=both))
        engine.wait_until_up()
        wish = {"do_remote_decode": True}
        (answer,) = engine.generate(Request([5, 6, 7], 1, wish))
        assert answer.transfer["kvxfer"]["workers"][0][0] == f"127.0.0.1:{port + 1}"
        one = {"host": "127.0.0.1", "port_range": str(port)}
        engine = start_pair.alone(dataclasses.replace(KVXFER, extra=one))
        with pytest.raises(EngineError):
            engine.wait_until_up()
        assert 'every port of "port_range" is taken' in engine.log_tail(400)
