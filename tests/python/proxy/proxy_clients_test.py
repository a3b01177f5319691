"""Clients: what they may get wrong, how they are told, and those that go away."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable

import pytest

pytest.importorskip("aiohttp")

from proxy_cluster import PROMPT, Cluster, becomes, run

MODES = pytest.mark.parametrize("mode", ["pull", "push"])


@pytest.mark.parametrize("stream", [False, True])
def test_both_instances_and_the_client_get_the_clients_request_id(stream: bool) -> None:
    async def main(cluster: Cluster) -> None:
        answer = await cluster.post(headers={"X-Request-Id": "mine"}, stream=stream)
        assert answer.headers["X-Request-Id"] == "mine"
        for fake in (cluster.prefills[0], cluster.decodes[0]):
            assert fake.asked[0].headers["X-Request-Id"] == "mine"

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_without_an_id_gets_one(stream: bool) -> None:
    async def main(cluster: Cluster) -> None:
        ids = {(await cluster.post(stream=stream)).headers["X-Request-Id"] for _ in range(2)}
        assert len(ids) == 2
        for each in ids:
            assert uuid.UUID(each).version == 4
        for fake in (cluster.prefills[0], cluster.decodes[0]):
            assert {asked.headers["X-Request-Id"] for asked in fake.asked} == ids

    run(main)


def test_an_error_has_the_request_id_too() -> None:
    async def main(cluster: Cluster) -> None:
        for body in (b"{", b'{"n": 1}'):
            cluster.prefills[0].status = 400
            answer = await cluster.post(body, headers={"X-Request-Id": "mine"})
            assert (answer.status, answer.headers["X-Request-Id"]) == (400, "mine")

    run(main)


def test_keys_and_traces_go_to_both_instances_and_nothing_else() -> None:
    async def main(cluster: Cluster) -> None:
        sent = {"Authorization": "Bearer k", "traceparent": "00-1-2-01", "Cookie": "c=1"}
        await cluster.post(headers=sent)
        for fake in (cluster.prefills[0], cluster.decodes[0]):
            headers = fake.asked[0].headers
            assert headers["Authorization"] == "Bearer k"
            assert headers["traceparent"] == "00-1-2-01"
            assert "Cookie" not in headers

    run(main)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"null", "no JSON object"),
    ],
    ids=lambda value: repr(value[:9]),
)
def test_a_body_that_is_no_json_object(body: bytes, why: str) -> None:
    async def main(cluster: Cluster) -> None:
        answer = await cluster.post(body)
        assert answer.status == 400
        assert why in answer.error
        assert cluster.prefills[0].asked == []

    run(main)


def test_a_body_that_is_too_large() -> None:
    async def main(cluster: Cluster) -> None:
        assert (await cluster.post(prompt="x" * 900_000)).status == 200
        answer = await cluster.post(prompt="x" * 1_100_000)
        assert answer.status == 413
        assert "--max-body-mb" in answer.error
        assert len(cluster.prefills[0].asked) == 1

    run(main, 1, 1, "--max-body-mb", "1")


def test_a_request_that_does_not_arrive() -> None:
    async def main(cluster: Cluster) -> None:
        host, port = cluster.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()

    run(main, 1, 1, "--client-timeout", "0.2")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_not_compressed_as_it_says(encoding: str) -> None:
    async def main(cluster: Cluster) -> None:
        answer = await cluster.post(b"{}{}{}", headers={"Content-Encoding": encoding})
        assert answer.status == 400

    run(main)


def test_a_client_that_leaves_in_the_middle_of_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: Cluster) -> None:
        host, port = cluster.url.removeprefix("http://").split(":")
        for _ in range(10):
            _, writer = await asyncio.open_connection(host, int(port))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            writer.write(head)
            await becomes(lambda: cluster.proxy.metrics.running == 1)
            writer.transport.abort()
            await becomes(cluster.is_idle)
        assert await cluster.metric("requests_total", status="disconnected") == 10

    run(main)
    assert "Error handling" not in caplog.text


def test_a_path_that_is_not_served() -> None:
    async def main(cluster: Cluster) -> None:
        for answer in (await cluster.post(path="/v1/embeddings"), await cluster.get("/")):
            assert answer.status == 404
            assert "does not serve" in answer.error

    run(main)


async def _leave(cluster: Cluster, until: Callable[[], bool]) -> None:
    asking = asyncio.ensure_future(cluster.post(stream=True))
    await becomes(until)
    asking.cancel()


def test_a_client_that_leaves_while_prefill_computes() -> None:
    async def main(cluster: Cluster) -> None:
        prefill = cluster.prefills[0]
        prefill.goes_on.clear()
        await _leave(cluster, lambda: len(prefill.asked) == 1)
        await becomes(lambda: prefill.aborted == 1)
        await becomes(cluster.is_idle)
        assert cluster.decodes[0].asked == []
        assert await cluster.metric("requests_total", status="disconnected") == 1
        assert await cluster.metric("failures_total") == 0

    run(main)


@MODES
def test_a_client_that_leaves_before_the_first_byte(mode: str) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post()
        decode = cluster.decodes[0]
        decode.goes_on.clear()
        await _leave(cluster, lambda: len(decode.asked) == 2)
        await becomes(lambda: decode.aborted == 1)

    run(main, 1, 1, "--mode", mode)


def test_a_client_that_leaves_ends_both_sides_of_a_push() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post()
        both = [cluster.prefills[0], cluster.decodes[0]]
        for fake in both:
            fake.goes_on.clear()
        await _leave(cluster, lambda: all(len(fake.asked) == 2 for fake in both))
        await becomes(lambda: all(fake.aborted == 1 for fake in both))

    run(main, 1, 1, "--mode", "push")


@MODES
def test_a_client_that_leaves_in_the_middle_of_a_stream(mode: str) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.post()
        prefill, decode = cluster.prefills[0], cluster.decodes[0]
        decode.pauses_after = 1
        decode.goes_on.clear()
        if mode == "push":
            prefill.goes_on.clear()  # it is not done either
        url, body = f"{cluster.url}/v1/completions", PROMPT | {"stream": True}
        async with cluster.session.post(url, json=body) as response:
            await response.content.readany()
            response.close()
        await becomes(lambda: decode.aborted == 1)
        if mode == "push":
            await becomes(lambda: prefill.aborted == 1)
        await becomes(cluster.is_idle)

    run(main, 1, 1, "--mode", mode)


def test_a_client_that_takes_nothing_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: Cluster) -> None:
        decode = cluster.decodes[0]
        decode.pieces = ["data: " + "x" * 100_000 + "\n\n"] * 400
        host, port = cluster.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = json.dumps(PROMPT | {"stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await becomes(lambda: decode.aborted == 1)
        await becomes(cluster.is_idle)
        writer.close()
        assert "Error handling" not in caplog.text

    run(main, 1, 1, "--client-timeout", "0.3")
