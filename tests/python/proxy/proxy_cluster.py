"""A proxy with instances that only pretend: they answer as vLLM does and do as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from proxy import Proxy, parse_options, started

PROMPT = {"model": "m", "prompt": "Hello", "max_tokens": 20}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
PIECES = [f'data: {{"choices": [{{"text": "{word}"}}]}}\n\n' for word in ("One", "two", "three")]
DONE = "data: [DONE]\n\n"
_LIMIT_S = 20.0


@dataclass
class Asked:
    """A request that an instance has got."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["kv_transfer_params"]
        return found


class Fake:
    """A ``vllm serve``. What it does next is set by a test at any time."""

    def __init__(self, stage: str, number: int) -> None:
        self.stage, self.engine, self.life = stage, f"{stage}-{number}", 1
        self.asked: list[Asked] = []
        self.released: list[Asked] = []  # references that came back, and are not among those
        self.aborted = 0  # requests whose connection was closed before they were answered
        self.healthy = True
        self.frozen = False
        self.status = 200
        self.params = True  # prefill: whether it answers kv_transfer_params
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.pieces = [*PIECES, DONE]
        self.ends_after: int | None = None  # pieces; then the connection is cut
        self.pauses_after: int | None = None  # pieces; then it waits for goes_on
        self.runner: web.AppRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[list[str]]:
        return [["127.0.0.1:5000", f"{self.life:032x}"]]

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/{path:.*}", self._infer)
        self.runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        """Connections are refused, those that there are end."""
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    def freeze(self) -> None:
        """As a host that is gone: connections stay, nothing is answered any more."""
        self.frozen = True
        self.goes_on.clear()

    async def _health(self, _: web.Request) -> web.Response:
        if self.frozen:
            await asyncio.Event().wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        by = request.headers.get("Authorization")
        return web.json_response({"object": "list", "data": [{"id": self.engine, "by": by}]})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        asked = Asked(request.path, await request.json(), request.headers)
        reference = (asked.body.get("kv_transfer_params") or {}).get("kvxfer", {})
        if reference.get("mode") == "release":
            self.released.append(asked)
            return web.json_response({"by": self.engine})
        self.asked.append(asked)
        try:
            if self.pauses_after is None:
                await self.goes_on.wait()
            if self.status != 200:
                error = {
                    "message": f"because of {self.engine}",
                    "type": "BadRequestError",
                    "param": None,
                    "code": self.status,
                }
                return web.json_response({"error": error}, status=self.status)
            if asked.body.get("stream"):
                return await self._stream(request)
            return web.json_response(self._answer(asked))
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise

    def _answer(self, asked: Asked) -> dict[str, Any]:
        answer: dict[str, Any] = {"by": self.engine, "kv_transfer_params": None}
        if self.stage == "prefill" and self.params:
            answer["kv_transfer_params"] = self._refer(asked.params)
        return answer

    def _refer(self, params: dict[str, Any]) -> dict[str, Any]:
        reference = {
            "version": 3,
            "transfer": params.get("kvxfer", {}).get("transfer", "of its own"),
            "engine": self.engine,
            "fingerprint": {"weights": "f" * 12},
            "workers": self.workers,
            "tp": 1,
            "layers": [[4]],
            "tokens": 7,
        }
        return {"do_remote_prefill": True, "do_remote_decode": False, "kvxfer": reference}

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number, piece in enumerate(self.pieces):
            if number == self.ends_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if number == self.pauses_after:
                await self.goes_on.wait()
            await response.write(piece.encode())
        await response.write_eof()
        return response


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        """What an OpenAI client shows."""
        error = self.json["error"]
        assert error["code"] == self.status and error["type"] and "param" in error
        return str(error["message"])


@dataclass
class Cluster:
    proxy: Proxy
    prefills: list[Fake]
    decodes: list[Fake]
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.proxy.address

    async def post(
        self,
        body: Any = None,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Answer:
        """``body``: bytes go as they are; ``more`` is added to it."""
        if not isinstance(body, bytes):
            body = json.dumps((body or PROMPT) | more).encode()
        url, data = self.url + path, io.BytesIO(body)
        async with self.session.post(url, data=data, headers=headers) as response:
            return Answer(response.status, response.headers, await response.text())

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        async with self.session.get(self.url + path, headers=headers) as response:
            return Answer(response.status, response.headers, await response.text())

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of those with these labels."""
        total = 0.0
        for line in (await self.get("/metrics")).text.splitlines():
            has = [f'{label}="{value}"' in line for label, value in labels.items()]
            if line.split("{")[0].split(" ")[0] == f"kvxfer_proxy_{name}" and all(has):
                total += float(line.rsplit(" ", 1)[1])
        return total

    async def all_up(self) -> None:
        await becomes(lambda: all(instance.healthy for instance in self.proxy.instances))

    def is_idle(self) -> bool:
        """Nothing is left of any request."""
        return self.proxy.metrics.running == 0 and all(
            instance.in_flight == 0 for instance in self.proxy.instances
        )


async def becomes(what: Callable[[], bool], limit_s: float = 5.0) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "did not come about"
        await asyncio.sleep(0.005)


def run(
    main: Callable[[Cluster], Awaitable[None]], prefills: int = 1, decodes: int = 1, *options: str
) -> None:
    """With a proxy and so many instances, all of which are up. Nothing may be left of a request."""

    async def all_of_it() -> None:
        async with started_cluster(prefills, decodes, *options) as cluster:
            await cluster.all_up()
            await main(cluster)
            await becomes(cluster.is_idle)

    asyncio.run(asyncio.wait_for(all_of_it(), _LIMIT_S))


@contextlib.asynccontextmanager
async def started_fakes(prefills: int, decodes: int) -> AsyncIterator[list[Fake]]:
    fakes = [Fake("prefill", n) for n in range(prefills)] + [
        Fake("decode", n) for n in range(decodes)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            await fake.start()
            stack.push_async_callback(fake.stop)
        yield fakes


def arguments(fakes: list[Fake], *options: str) -> list[str]:
    found = ["--port", "0", "--health-interval", "0.05", "--health-timeout", "0.5"]
    for fake in fakes:
        found += [f"--{fake.stage}", fake.url]
    return found + list(options)


@contextlib.asynccontextmanager
async def started_cluster(prefills: int, decodes: int, *options: str) -> AsyncIterator[Cluster]:
    async with (
        started_fakes(prefills, decodes) as fakes,
        started(parse_options(arguments(fakes, *options))) as (proxy, _),
        aiohttp.ClientSession() as session,
    ):
        yield Cluster(proxy, fakes[:prefills], fakes[prefills:], session)
