"""What the scheduler's half makes of requests that are odd: it goes on stepping for none that is over, and
those who wait for one hear of it. No engine is started."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")

# pylint: disable=wrong-import-position
from kvxfer.vllm.division import Division  # noqa: E402
from kvxfer.vllm.groups import Group  # noqa: E402
from kvxfer.vllm.reference import GroupBlocks, Reference, Worker, release_of  # noqa: E402
from kvxfer.vllm.scheduler import SchedulerSide  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.step import Step, WorkerAddress  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

_TOKENS = 32
_WORKER = Worker("192.0.2.1:7000", "0" * 32)
_TRANSFER = "0123456789ab"
_DIVISION = Division(1, ((1,),))
_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "kvxfer": {"transfer": _TRANSFER}}


def _side(fails: bool = True) -> SchedulerSide:
    group = Group(_TOKENS)
    fingerprint: Any = SimpleNamespace(
        hashes={"weights": "a"}, described={}, differs=lambda _: "", add=lambda _: None
    )
    side = SchedulerSide(
        Settings(), "engine", [group], (0,), fingerprint, 1, fails, loads=True, why_no_push=""
    )
    side.use_workers({(0, 0): WorkerAddress(_WORKER, [_TOKENS], _DIVISION, {})})
    return side


def _request(name: str, params: dict[str, Any], tokens: int = 64, **more: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        kv_transfer_params=params,
        prompt_token_ids=[1] * tokens,
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
        **more,
    )


def _reference(tokens: int) -> dict[str, Any]:
    blocks = GroupBlocks(0, tuple(range(1, 1 + -(-tokens // _TOKENS))))
    reference = Reference(
        "pull",
        "prefill",
        _TRANSFER,
        tokens,
        {"weights": "a"},
        (_WORKER,),
        _DIVISION,
        (blocks,),
        (_TOKENS,),
    )
    return {"do_remote_prefill": True, "kvxfer": reference.to_params()}


def _step(side: SchedulerSide) -> Step:
    output: Any = SimpleNamespace(preempted_req_ids=(), num_scheduled_tokens={})
    return side.build(output)


def _load(side: SchedulerSide, request: Any, computed: int, external: int) -> Step:
    ids = list(range(1, 1 + -(-request.num_prompt_tokens // _TOKENS)))
    blocks: Any = SimpleNamespace(get_block_ids=lambda: (ids,), blocks=())
    assert side.matched_tokens(request, computed) == external
    side.after_allocation(request, blocks, external)
    return _step(side)


def _has_loaded(side: SchedulerSide, request: Any) -> None:
    names = {request.request_id}
    output: Any = SimpleNamespace(
        kv_connector_worker_meta=None, finished_sending=None, finished_recving=names, failed_recving=set()
    )
    side.hear(output)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR])
def test_a_request_that_asks_for_both_is_over_when_it_ends(
    fails: bool, status: RequestStatus
) -> None:
    side = _side(fails)
    request = _request("r1", _PREFILL | {"do_remote_prefill": True})
    side.on_new_request(request)
    assert not _step(side).expected
    request.status = status
    assert side.request_finished(request, ([1, 2],)) == (False, None)
    _step(side)
    assert not side.has_work()


def test_a_push_is_finished_whatever_its_request_says_by_then() -> None:
    side = _side()
    request = _request("r1", _PREFILL)
    side.on_new_request(request)
    assert [each.lease for each in _step(side).expected] == [_TRANSFER]
    assert side.has_work()
    request.status, request.kv_transfer_params = RequestStatus.FINISHED_ABORTED, None
    assert side.request_finished(request, ([1, 2],)) == (False, None)
    assert [each.lease for each in _step(side).abandoned] == [_TRANSFER]
    assert not side.has_work()


def test_prefill_that_was_not_admitted_says_so_to_decode() -> None:
    """vLLM has a request stand for it, of another prompt, whose hash would be the wrong thing to say."""
    side = _side()
    request = _request("r1", _PREFILL, tokens=1, abort_immediately=True)
    request.status = RequestStatus.FINISHED_ABORTED
    side.on_new_request(request)
    assert side.request_finished(request, ((),)) == (False, None)
    assert side.has_work()
    step = _step(side)
    assert not step.expected
    (abandoned,) = step.abandoned
    assert (abandoned.lease, abandoned.held) == (_TRANSFER, False)
    assert "refused the request before it was admitted" in abandoned.why
    assert not side.has_work()


def test_prefill_that_was_not_admitted_says_nothing_of_a_push_that_nobody_knows() -> None:
    side = _side()
    params = _PREFILL | {"kvxfer": {"mode": "push"}}
    side.on_new_request(_request("r1", params, tokens=1, abort_immediately=True))
    assert not side.has_work()
    assert not _step(side).expected


@pytest.mark.parametrize("tokens", [64, 63, 65])
def test_a_second_answer_to_a_prompt_that_comes_late_loads_nothing(tokens: int) -> None:
    """Its lease is used up; what vLLM does not find in the prefix cache it computes: of whole blocks the
    last one."""
    side = _side()
    first, second = (_request(name, _reference(tokens), tokens) for name in ("0", "1"))
    side.on_new_request(first)
    assert [each.lease for each in _load(side, first, 0, tokens).fetches] == [_TRANSFER]
    _has_loaded(side, first)
    side.on_new_request(second)
    cached = (tokens - 1) // _TOKENS * _TOKENS
    step = _load(side, second, cached, 0)
    assert (step.fetches, step.returned, step.refused) == ([], [], {})
    second.status = RequestStatus.FINISHED_STOPPED
    assert side.request_finished(second, ([1, 2],)) == (False, None)
    assert not side.has_work()


def test_what_none_of_it_is_cached_of_is_loaded_again() -> None:
    side = _side()
    first, second = (_request(name, _reference(64), 64) for name in ("0", "1"))
    side.on_new_request(first)
    _load(side, first, 0, 64)
    _has_loaded(side, first)
    side.on_new_request(second)
    assert len(_load(side, second, 0, 64).fetches) == 1


def test_a_worker_that_is_named_often_is_told_once() -> None:
    reference = _reference(64)["kvxfer"]
    other = Worker("192.0.2.2:7000", "1" * 32)
    (worker,) = reference["workers"]
    reference["workers"] = [worker] * 500 + [[other.address, other.incarnation]] + [worker] * 500
    assert release_of(reference) == (_TRANSFER, (_WORKER, other))
