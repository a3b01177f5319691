"""How a request goes through both stages: what each instance is asked, and when."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from proxy_cluster import CHAT, DONE, PIECES, PROMPT, Cluster, becomes, run

PUSH = ("--mode", "push")


@pytest.mark.parametrize(("path", "body"), [("completions", PROMPT), ("chat/completions", CHAT)])
def test_prefill_computes_one_token_and_decode_gets_what_it_answered(
    path: str, body: dict[str, Any]
) -> None:
    async def main(cluster: Cluster) -> None:
        more: dict[str, Any] = {
            "stream_options": {"include_usage": True},
            "min_tokens": 5,
            "seed": 3,
        }
        answer = await cluster.post(body, f"/v1/{path}", **more, stream=True)
        assert (answer.status, answer.text) == (200, "".join(PIECES) + DONE)
        (prefill,), (decode,) = cluster.prefills[0].asked, cluster.decodes[0].asked
        assert prefill.path == decode.path == f"/v1/{path}"
        only_chat = {"max_completion_tokens": 1} if path.startswith("chat") else {}
        assert prefill.body == body | only_chat | {
            "seed": 3,
            "max_tokens": 1,
            "stream": False,
            "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
        }
        assert decode.params["kvxfer"]["workers"] == cluster.prefills[0].workers
        assert decode.params["kvxfer"]["tokens"] == 7
        rest = {k: v for k, v in decode.body.items() if k != "kv_transfer_params"}
        assert rest == body | more | {"stream": True}

    run(main)


def test_an_answer_that_is_not_streamed() -> None:
    async def main(cluster: Cluster) -> None:
        answer = await cluster.post()
        assert (answer.status, answer.json["by"]) == (200, "decode-0")
        assert answer.headers["Content-Type"].startswith("application/json")

    run(main)


def test_the_pieces_of_a_stream_come_when_they_are_made() -> None:
    async def main(cluster: Cluster) -> None:
        decode = cluster.decodes[0]
        decode.pauses_after = 1
        decode.goes_on.clear()
        url, body = f"{cluster.url}/v1/completions", PROMPT | {"stream": True}
        async with cluster.session.post(url, json=body) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            assert await response.content.readany() == PIECES[0].encode()
            decode.goes_on.set()
            assert (await response.content.read()).decode() == "".join(PIECES[1:]) + DONE

    run(main)


def test_a_clients_own_transfer_params_do_not_go_through() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post(kv_transfer_params={"do_remote_prefill": True, "kvxfer": "evil"})
        await cluster.post(kv_transfer_params={"kvxfer": "evil"}, n=2)
        assert "evil" not in str(cluster.prefills[0].asked + cluster.decodes[0].asked)

    run(main)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"best_of": 3},
        {"prompt": ["one", "two"]},
        {"prompt": [[1, 2], [3]]},
        {"use_beam_search": True},
        {"prompt_logprobs": 0},
    ],
    ids=str,
)
def test_what_is_not_one_prompt_with_one_answer_is_decodes_alone(more: dict[str, Any]) -> None:
    async def main(cluster: Cluster) -> None:
        assert (await cluster.post(**more)).status == 200
        assert cluster.prefills[0].asked == []
        assert cluster.decodes[0].asked[0].body == PROMPT | more
        assert await cluster.metric("flows_total", flow="decode_only") == 1

    run(main)


@pytest.mark.parametrize("more", [{"n": 1}, {"prompt": ["one"]}, {"prompt": [1, 2]}], ids=str)
def test_one_prompt_in_other_words(more: dict[str, Any]) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post(**more)
        assert len(cluster.prefills[0].asked) == 1

    run(main)


def test_a_push_asks_decode_before_prefill_has_answered() -> None:
    async def main(cluster: Cluster) -> None:
        prefill, decode = cluster.prefills[0], cluster.decodes[0]
        await cluster.post()
        first = decode.asked[0].params["kvxfer"]
        assert first["transfer"] == "of its own" and first["tokens"] == 7  # as prefill answered
        assert await cluster.metric("flows_total", flow="push_sequential") == 1

        prefill.goes_on.clear()
        decode.goes_on.clear()
        request = asyncio.ensure_future(cluster.post(stream=True))
        await becomes(lambda: len(prefill.asked) == len(decode.asked) == 2)
        transfer = prefill.asked[1].params["kvxfer"]["transfer"]
        assert uuid.UUID(transfer).hex == transfer
        assert prefill.asked[1].params == {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "kvxfer": {"transfer": transfer},
        }
        assert decode.asked[1].params == {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "kvxfer": {
                "version": 3,
                "mode": "push",
                "transfer": transfer,
                "workers": prefill.workers,
                "tp": 1,
                "layers": [[4]],
                "fingerprint": {"weights": "f" * 12},
                "engine": "prefill-0",
            },
        }
        prefill.goes_on.set()
        decode.goes_on.set()
        assert (await request).text == "".join(PIECES) + DONE
        assert await cluster.metric("flows_total", flow="push") == 1

    run(main, 1, 1, *PUSH)


def test_a_push_does_not_wait_for_prefills_answer_when_decode_has_begun() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post()
        cluster.prefills[0].goes_on.clear()
        answer = await cluster.post(stream=True)
        assert answer.text == "".join(PIECES) + DONE
        await asyncio.sleep(0.1)
        assert cluster.prefills[0].aborted == 0  # it is let end by itself
        assert cluster.proxy.prefills.instances[0].in_flight == 1
        cluster.prefills[0].goes_on.set()

    run(main, 1, 1, *PUSH)


def test_each_transfer_has_its_own_name() -> None:
    async def main(cluster: Cluster) -> None:
        for _ in range(4):
            await cluster.post()
        names = [each.params["kvxfer"]["transfer"] for each in cluster.decodes[0].asked[1:]]
        assert len(set(names)) == 3

    run(main, 1, 1, *PUSH)


def test_a_prefill_that_was_restarted_is_learnt_anew() -> None:
    async def main(cluster: Cluster) -> None:
        prefill, decode = cluster.prefills[0], cluster.decodes[0]
        await cluster.post()
        before, prefill.life = prefill.workers, 2  # too soon for a health check
        decode.goes_on.clear()  # it waits for an agent that is gone
        request = asyncio.ensure_future(cluster.post())
        await becomes(lambda: len(decode.asked) == 3)
        decode.goes_on.set()
        assert (await request).status == 200
        assert [each.params["kvxfer"]["workers"] for each in decode.asked] == [
            before,
            before,
            prefill.workers,
        ]
        # The second one is a whole reference to what prefill has computed for it.
        assert decode.asked[2].params["kvxfer"]["tokens"] == 7
        transfers = {each.params["kvxfer"]["transfer"] for each in decode.asked[1:]}
        assert transfers == {prefill.asked[1].params["kvxfer"]["transfer"]}
        assert decode.aborted == 1

        await cluster.post()
        assert decode.asked[3].params["kvxfer"]["workers"] == prefill.workers
        assert len(prefill.asked) == 3
        assert await cluster.metric("failures_total") == 0

    run(main, 1, 1, *PUSH)


def test_a_restarted_prefill_gets_back_once_what_decode_refuses() -> None:
    async def main(cluster: Cluster) -> None:
        prefill, decode = cluster.prefills[0], cluster.decodes[0]
        await cluster.post()
        prefill.life = 2
        decode.goes_on.clear()
        request = asyncio.ensure_future(cluster.post())
        await becomes(lambda: len(decode.asked) == 3)
        decode.status = 400
        decode.goes_on.set()
        assert (await request).status == 400
        await becomes(cluster.is_idle)
        await becomes(lambda: bool(prefill.released))
        await asyncio.sleep(0.1)
        (released,) = prefill.released
        assert released.params["kvxfer"]["workers"] == prefill.workers

    run(main, 1, 1, *PUSH)


def test_a_push_that_came_to_nothing_leaves_prefill_known() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post()
        cluster.prefills[0].params = False  # decode has computed the prompt itself
        for _ in range(2):
            assert (await cluster.post()).status == 200
            await becomes(cluster.is_idle)
        assert await cluster.metric("flows_total", flow="push") == 2

    run(main, 1, 1, *PUSH)


def test_a_reference_of_another_version_is_only_passed_on() -> None:
    async def main(cluster: Cluster) -> None:
        prefill = cluster.prefills[0]
        refer = prefill._refer

        def other_version(params: dict[str, Any]) -> dict[str, Any]:
            answered = refer(params)
            answered["kvxfer"]["version"] = 3
            return answered

        prefill._refer = other_version  # type: ignore[method-assign]
        for _ in range(2):
            await cluster.post()
        assert [each.params["kvxfer"]["version"] for each in cluster.decodes[0].asked] == [3, 3]

    run(main, 1, 1, *PUSH)


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_requests_are_spread_over_the_instances(mode: str) -> None:
    async def main(cluster: Cluster) -> None:
        for _ in range(6):
            await cluster.post()
        assert [len(each.asked) for each in cluster.prefills] == [2, 2, 2]
        assert [len(each.asked) for each in cluster.decodes] == [3, 3]

    run(main, 3, 2, "--mode", mode)


def test_the_least_busy_instance_is_next() -> None:
    async def main(cluster: Cluster) -> None:
        slow = cluster.decodes[0]
        slow.goes_on.clear()
        waiting = asyncio.ensure_future(cluster.post())
        await becomes(lambda: len(slow.asked) == 1)
        for _ in range(4):
            await cluster.post()
        assert [len(each.asked) for each in cluster.decodes] == [1, 4]
        slow.goes_on.set()
        await waiting

    run(main, 1, 2)
