"""What is tried when an instance fails, and what the client hears when nothing is left to try."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("aiohttp")

from proxy_cluster import DONE, PIECES, Cluster, Fake, becomes, run

STREAM = "".join(PIECES) + DONE
SLOW_CHECKS = ("--health-interval", "600")  # what happens is traffic's doing
MODES = pytest.mark.parametrize("mode", ["pull", "push"])


async def _refuses(fake: Fake) -> None:
    await fake.stop()


async def _answers_500(fake: Fake) -> None:
    fake.status = 500


async def _says_nothing(fake: Fake) -> None:
    fake.goes_on.clear()


async def _breaks_off(fake: Fake) -> None:
    fake.ends_after = 0


async def _has_no_params(fake: Fake) -> None:
    fake.params = False


PREFILL_FAILS = pytest.mark.parametrize(
    ("fails", "kind"),
    [(_refuses, "connect"), (_answers_500, "status"), (_says_nothing, "timeout")],
)
DECODE_FAILS = pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (_refuses, "connect"),
        (_answers_500, "status"),
        (_says_nothing, "timeout"),
        (_breaks_off, "lost"),
    ],
)
SHORT = ("--prefill-timeout", "0.2", "--decode-timeout", "0.4", *SLOW_CHECKS)


async def _learn(cluster: Cluster) -> None:
    """Each prefill instance becomes known; the first ones of both stages are next."""
    while await cluster.metric("requests_total") < len(cluster.prefills) * len(cluster.decodes):
        assert (await cluster.post()).status == 200
    for fake in cluster.prefills + cluster.decodes:
        fake.asked.clear()


@MODES
@PREFILL_FAILS
def test_another_prefill_is_asked(
    mode: str, fails: Callable[[Fake], Awaitable[None]], kind: str
) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        bad, good = cluster.prefills
        if mode == "push":
            cluster.decodes[0].goes_on.clear()  # it gets nothing from the one that fails
        await fails(bad)
        request = asyncio.ensure_future(cluster.post(stream=True))
        await becomes(lambda: len(good.asked) == 1)
        cluster.decodes[0].goes_on.set()
        answer = await request
        assert (answer.status, answer.text) == (200, STREAM)
        used = cluster.decodes[0].asked[-1].params["kvxfer"]
        assert used["engine"] == good.engine
        assert len(cluster.decodes[0].asked) == (2 if mode == "push" else 1)
        assert cluster.decodes[0].aborted == (1 if mode == "push" else 0)
        assert await cluster.metric("retries_total", stage="prefill") == 1
        assert await cluster.metric("failures_total", instance=bad.url, kind=kind) == 1
        bad.goes_on.set()

    run(main, 2, 1, "--mode", mode, *SHORT)


@MODES
@DECODE_FAILS
def test_another_decode_is_asked_and_prefill_again(
    mode: str, fails: Callable[[Fake], Awaitable[None]], kind: str
) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        bad, good = cluster.decodes
        await fails(bad)
        answer = await cluster.post(stream=True)
        assert (answer.status, answer.text) == (200, STREAM)
        assert len(cluster.prefills[0].asked) == 2
        assert len(good.asked) == 1
        assert await cluster.metric("retries_total", stage="decode") == 1
        assert await cluster.metric("failures_total", stage="decode", kind=kind) == 1
        bad.goes_on.set()

    run(main, 1, 2, "--mode", mode, *SHORT)


def test_who_has_failed_is_not_asked_again_though_the_other_is_busier() -> None:
    async def main(cluster: Cluster) -> None:
        bad, good = cluster.prefills
        bad.goes_on.clear()
        good.goes_on.clear()
        waiting = [asyncio.ensure_future(cluster.post()) for _ in range(2)]
        await becomes(lambda: len(bad.asked) == len(good.asked) == 1)
        bad.goes_on.set()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        bad.status = 500
        waiting.append(asyncio.ensure_future(cluster.post()))
        await becomes(lambda: len(good.asked) == 2)
        assert len(bad.asked) == 2
        good.goes_on.set()
        assert [(await each).status for each in waiting] == [200, 200, 200]

    run(main, 2, 1)


def test_a_stream_that_ends_before_it_begins_is_anothers() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.decodes[0].pieces = []
        assert (await cluster.post(stream=True)).text == STREAM
        assert await cluster.metric("failures_total", stage="decode", kind="lost") == 1

    run(main, 1, 2)


def test_a_push_that_decode_fails_ends_prefills_request() -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        prefill, (bad, good) = cluster.prefills[0], cluster.decodes
        prefill.goes_on.clear()
        bad.status = 500
        request = asyncio.ensure_future(cluster.post())
        await becomes(lambda: prefill.aborted == 1)
        prefill.goes_on.set()
        assert (await request).json["by"] == good.engine
        # Decode may have failed because what was known of prefill was out of date.
        assert good.asked[0].params["kvxfer"]["tokens"] == 7

    run(main, 1, 2, "--mode", "push")


def test_a_prefill_without_the_connector_is_named() -> None:
    async def main(cluster: Cluster) -> None:
        await _has_no_params(cluster.prefills[0])
        answer = await cluster.post()
        assert answer.status == 502
        assert f"Prefill instance {cluster.prefills[0].url} answered without" in answer.error
        assert "KvxferConnector" in answer.error
        assert cluster.decodes[0].asked == []

    run(main)


def test_no_more_is_tried_than_was_allowed() -> None:
    async def main(cluster: Cluster) -> None:
        for prefill in cluster.prefills:
            prefill.status = 503
        answer = await cluster.post()
        assert answer.status == 502
        assert [len(each.asked) for each in cluster.prefills] == [1, 1, 0]
        last = cluster.prefills[1]
        assert f"Prefill instance {last.url} answered 503" in answer.error

    run(main, 3, 1, "--retries", "1")


def test_nothing_is_tried_again_where_that_is_not_allowed() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.decodes[0].status = 500
        assert (await cluster.post()).status == 502
        assert len(cluster.prefills[0].asked) == 1

    run(main, 2, 2, "--retries", "0")


def test_the_only_decode_is_asked_again() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.decodes[0].status = 500
        answer = await cluster.post()
        assert answer.status == 502
        assert len(cluster.decodes[0].asked) == len(cluster.prefills[0].asked) == 3
        assert f"Decode instance {cluster.decodes[0].url} answered 500" in answer.error

    run(main)


def test_an_instances_words_are_for_the_client_and_not_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: Cluster) -> None:
        cluster.decodes[0].status = 500
        assert '"because of decode-0"' in (await cluster.post()).error

    run(main)
    assert "answered 500" in caplog.text
    assert "because of" not in caplog.text and "Hello" not in caplog.text


def test_a_time_out_is_a_504() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.prefills[0].goes_on.clear()
        answer = await cluster.post()
        assert answer.status == 504
        assert "said nothing for 0.2 s" in answer.error
        cluster.prefills[0].goes_on.set()

    run(main, 1, 1, "--retries", "0", *SHORT)


@MODES
@pytest.mark.parametrize("cut", ["at the end of an event", "in the middle of one"])
def test_a_stream_that_breaks_ends_with_an_error(mode: str, cut: str) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        decode = cluster.decodes[0]
        decode.ends_after = 2
        if cut == "in the middle of one":
            decode.pieces[1:2] = [PIECES[1][:9]]
        answer = await cluster.post(stream=True)
        assert answer.status == 200
        *begun, last = answer.text.strip().split("\n\n")
        assert begun[0] == PIECES[0].strip()
        error = json.loads(last.removeprefix("data: "))["error"]
        assert f"Decode instance {decode.url} closed the connection" in error["message"]
        assert DONE not in answer.text
        assert (len(decode.asked), len(cluster.prefills[0].asked)) == (1, 1)
        assert await cluster.metric("broken_streams_total") == 1
        assert await cluster.metric("failures_total", stage="decode", kind="lost") == 1

    run(main, 1, 2, "--mode", mode)


def test_a_stream_that_falls_silent_ends_with_an_error() -> None:
    async def main(cluster: Cluster) -> None:
        decode = cluster.decodes[0]
        decode.pauses_after = 1
        decode.goes_on.clear()
        answer = await cluster.post(stream=True)
        assert answer.text.startswith(PIECES[0]) and "said nothing for 0.2 s" in answer.text
        await becomes(lambda: decode.aborted == 1)

    run(main, 1, 1, "--idle-timeout", "0.2")


@MODES
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_a_clients_mistake_is_passed_on(mode: str, status: int, stage: str) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        (prefill,), (decode, _) = cluster.prefills, cluster.decodes
        refusing, other = (prefill, decode) if stage == "prefill" else (decode, prefill)
        refusing.status = status
        if mode == "push":
            other.goes_on.clear()  # its request ends with the other's
        answer = await cluster.post(stream=True)
        assert (answer.status, answer.error) == (status, f"because of {refusing.engine}")
        assert len(refusing.asked) == 1
        if mode == "push":
            await becomes(lambda: other.aborted == 1)
        assert await cluster.metric("retries_total") == 0
        other.goes_on.set()

    run(main, 1, 2, "--mode", mode)


@MODES
def test_a_prefill_that_is_gone_delays_nobody_else(mode: str) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        gone, decode = cluster.prefills[0], cluster.decodes[0]
        gone.freeze()
        if mode == "push":
            decode.goes_on.clear()  # it gets nothing
        own = asyncio.ensure_future(cluster.post())
        await becomes(lambda: len(gone.asked) == 1)
        for _ in range(10):
            assert (await cluster.post()).status == 200
        assert len(gone.asked) == 1 and not own.done()
        assert cluster.proxy.prefills.instances[0].healthy  # as far as anybody knows
        # And what it had itself is done by another as soon as it is known to be gone.
        await becomes(lambda: not cluster.proxy.prefills.instances[0].healthy)
        decode.goes_on.set()
        assert (await own).status == 200
        gone.goes_on.set()

    run(main, 2, 2, "--mode", mode, "--health-timeout", "1.5")


def test_a_decode_that_is_gone_delays_its_own_requests_only_until_that_is_known() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.decodes[0].freeze()
        answer = await cluster.post()
        assert answer.json["by"] == "decode-1"
        assert await cluster.metric("failures_total", stage="decode", kind="down") == 1
        cluster.decodes[0].goes_on.set()

    run(main, 1, 2)


def test_a_host_that_takes_no_connections() -> None:
    async def main(cluster: Cluster) -> None:
        gone, good = cluster.prefills
        await gone.stop()
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", gone.port))
            listener.listen(0)
            # A backlog that is full: the kernel drops what else wants to connect.
            fill = [socket.socket() for _ in range(3)]
            for each in fill:
                each.setblocking(False)
                each.connect_ex(("127.0.0.1", gone.port))
            assert (await cluster.post()).status == 200
            for each in fill:
                each.close()
        assert len(good.asked) == 1
        assert await cluster.metric("failures_total", instance=gone.url, kind="connect") == 1
        assert await cluster.metric("instance_up", instance=gone.url) == 0

    run(main, 2, 1, "--connect-timeout", "0.2", *SLOW_CHECKS)


def test_a_hundred_requests_while_instances_come_and_go() -> None:
    async def main(cluster: Cluster) -> None:
        async def stumble() -> None:
            for fake in (cluster.prefills + cluster.decodes) * 2:
                fake.status = 500
                await asyncio.sleep(0.02)
                fake.status = 200

        async def ask(number: int) -> int:
            await asyncio.sleep(number * 0.003)
            return (await cluster.post(stream=number % 2 == 0)).status

        stumbling = asyncio.ensure_future(stumble())
        statuses = await asyncio.gather(*(ask(number) for number in range(100)))
        await stumbling
        assert set(statuses) == {200}

    run(main, 3, 3, "--mode", "push", "--retries", "9", *SLOW_CHECKS)


async def _refuses_it(fake: Fake) -> None:
    fake.status = 400


@MODES
@pytest.mark.parametrize(
    ("fails", "status"),
    [(_refuses_it, 400), (_answers_500, 502), (_refuses, 502), (_says_nothing, 504)],
)
def test_what_decode_does_not_take_is_given_back(
    mode: str, fails: Callable[[Fake], Awaitable[None]], status: int
) -> None:
    """vLLM tells its connector nothing of a request that its front end refuses by itself."""

    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        (prefill,), (decode,) = cluster.prefills, cluster.decodes
        assert not prefill.released
        await fails(decode)
        headers = {"Authorization": "Bearer key", "X-Request-Id": "of the client"}
        answer = await cluster.post(headers=headers, stream=True)
        assert answer.status == status
        await becomes(lambda: len(prefill.released) == 1)
        (released,) = prefill.released
        asked = prefill.asked[-1].params.get("kvxfer", {}).get("transfer", "of its own")
        reference = released.params["kvxfer"]
        assert (reference["transfer"], reference["workers"]) == (asked, prefill.workers)
        assert released.params["do_remote_prefill"] is True
        assert "model" not in released.body, "that may be what was wrong"
        assert (released.path, released.body["max_tokens"]) == ("/v1/completions", 1)
        assert released.headers["Authorization"] == "Bearer key"
        assert released.headers["X-Request-Id"] != "of the client"
        decode.goes_on.set()

    run(main, 1, 1, "--mode", mode, "--retries", "0", *SHORT)


@MODES
def test_what_a_client_does_not_wait_for_is_given_back(mode: str) -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        (prefill,), (decode,) = cluster.prefills, cluster.decodes
        decode.goes_on.clear()
        request = asyncio.ensure_future(cluster.post())
        await becomes(lambda: len(decode.asked) == 1)
        request.cancel()
        await becomes(lambda: len(prefill.released) == 1)
        decode.goes_on.set()

    run(main, 1, 1, "--mode", mode)


def test_an_answer_that_is_taken_gives_nothing_back() -> None:
    async def main(cluster: Cluster) -> None:
        await _learn(cluster)
        assert (await cluster.post(stream=True)).status == 200
        cluster.prefills[0].status = 400
        assert (await cluster.post()).status == 400
        await asyncio.sleep(0.05)
        assert not cluster.prefills[0].released

    run(main)
