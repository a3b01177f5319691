"""What kv_transfer_params ask KvxferConnector for: what it does not do is said, by name. No engine is
started."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
import kvxfer.vllm.wishes  # noqa: E402
from kvxfer.vllm.groups import Group  # noqa: E402
from kvxfer.vllm.scheduler import SchedulerSide  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.wishes import Asked, Wishes  # noqa: E402

_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
_LOAD = {"do_remote_decode": False, "do_remote_prefill": True}
_LOADS = _LOAD | {"kvxfer": {"version": 1, "mode": "pull"}}
# What vLLM's toy proxy for NixlConnector sends.
_OF_NIXL = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
# What its D answers with bidirectional_kv_xfer, for P in the next turn.
_TURN_2 = {
    "remote_block_ids": [[1, 2]], "remote_engine_id": "d", "remote_request_id": "r",
    "remote_host": "10.0.0.1", "remote_port": 5600, "remote_num_tokens": 64, "tp_size": 1,
}  # fmt: skip


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    logger = SimpleNamespace(warning=lambda text, *values: found.append(text % values))
    monkeypatch.setattr(kvxfer.vllm.wishes, "logger", logger)
    return found


def _read(params: dict[str, Any], why_no_push: str = "", loads: bool = True) -> Asked:
    return Wishes(why_no_push, loads).read("r1", params)


@pytest.mark.parametrize(
    "params",
    [
        _PREFILL,
        _PREFILL | _OF_NIXL,
        _PREFILL | {"kvxfer": {"mode": "push"}},
        _PREFILL | {"kvxfer": {"mode": "pull"}},
        _PREFILL | {"kvxfer": {"transfer": "0123456789ab"}},
        _LOADS,
        {"do_remote_decode": False} | _OF_NIXL,
        {},
    ],
)
def test_what_proxies_ask_for_has_no_line(params: dict[str, Any], lines: list[str]) -> None:
    asked = _read(params)
    assert asked.prefill == bool(params.get("do_remote_decode"))
    assert asked.load == bool(params.get("do_remote_prefill"))
    assert not asked.refused
    assert not lines


_NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "an earlier turn's blocks": (_PREFILL | _TURN_2, "remote_block_ids with do_remote_decode"),
    "a wish that is none": (_PREFILL | {"kvxfer": "push"}, "kv_transfer_params['kvxfer'] is no object"),
    "another mode": (_PREFILL | {"kvxfer": {"mode": "steal"}}, "mode is 'steal', not one of pull, push"),
    "another wish": (_PREFILL | {"kvxfer": {"layers": 3}}, "has 'layers', which is ignored"),
    "a name that is none": (_PREFILL | {"kvxfer": {"transfer": "a b"}}, "transfer is no name"),
    "a reference without a wish": ({"kvxfer": {"mode": "pull"}}, "neither do_remote_prefill nor"),
    "NIXL's without a wish": (_TURN_2, "has 'remote_block_ids' and neither"),
    "Mooncake's": (_PREFILL | {"transfer_id": "x"}, "has 'transfer_id', which is for another connector"),
    "an offload's": (_LOADS | {"max_load_tokens": 7}, "has 'max_load_tokens', which is for another"),
}


@pytest.mark.parametrize(("params", "says"), _NAMED.values(), ids=_NAMED)
def test_what_is_not_done_is_named_in_one_line(
    params: dict[str, Any], says: str, lines: list[str]
) -> None:
    asked = _read(params)
    assert asked == Asked(bool(params.get("do_remote_decode")), bool(params.get("do_remote_prefill")))
    assert len(lines) == 1
    assert says in lines[0]


@pytest.mark.parametrize("wish", [{"mode": "push"}, {"transfer": "0123456789ab"}])
def test_a_push_that_this_engine_cannot_do_is_named(wish: dict[str, Any], lines: list[str]) -> None:
    assert _read(_PREFILL | {"kvxfer": wish}, why_no_push="push does not go with enable_dbo").prefill
    (line,) = lines
    assert "push does not go with enable_dbo: decode has to read" in line


def test_loads_that_are_refused(lines: list[str]) -> None:
    both = _read({"do_remote_decode": True, "do_remote_prefill": True, "kvxfer": {"mode": "pull"}})
    assert (both.prefill, both.load) == (True, True)
    assert "do_remote_prefill and do_remote_decode at once" in both.refused
    assert 'its kv_role is "kv_producer"' in _read(_LOAD, loads=False).refused
    assert not _read(_PREFILL, loads=False).refused
    for params in (_LOAD, _LOAD | {"kvxfer": "text"}):
        assert "no reference of a KvxferConnector ('kvxfer'), but nothing" in _read(params).refused
    assert "but remote_block_ids, remote_engine_id" in _read(_LOAD | _TURN_2).refused
    assert not lines  # the refusal has its own


def test_what_is_for_others_is_said_once(lines: list[str]) -> None:
    wishes = Wishes("", loads=True)
    for _ in range(3):
        wishes.read("r", _PREFILL | {"transfer_id": "x", "disagg_spec": {}})
    assert len(lines) == 1


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("params", [_LOAD, _LOAD | _PREFILL | {"do_remote_prefill": True}])
def test_a_load_that_is_refused_follows_the_policy(params: dict[str, Any], fails: bool) -> None:
    group = Group(16)
    side = SchedulerSide(
        Settings(), "engine", [group], (0,), None, workers=1, fails=fails, loads=False, why_no_push=""
    )  # type: ignore[arg-type]
    request: Any = SimpleNamespace(
        request_id="r1", kv_transfer_params=params, num_prompt_tokens=40, prompt_token_ids=[1] * 40
    )
    side.on_new_request(request)
    tokens = side.matched_tokens(request, 0)
    assert tokens == (40 if fails else 0)  # what then fails
    side.after_allocation(request, None, tokens)  # type: ignore[arg-type]
    output: Any = SimpleNamespace(preempted_req_ids=(), num_scheduled_tokens={})
    assert list(side.build(output).refused) == (["r1"] if fails else [])
