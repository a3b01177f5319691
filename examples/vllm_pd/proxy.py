#!/usr/bin/env python3
"""A proxy for vLLM with separate prefill and decode instances, whose KV cache kvxfer moves.

    proxy.py --prefill http://10.0.0.1:8100 --decode http://10.0.0.2:8200 [--mode push]

It serves /v1/completions and /v1/chat/completions as one vLLM would, /v1/models, /health, /metrics.
Prompts and answers are passed on and never logged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import resource
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from forwarding import Forwarder, Inquiry, Limits, Refused, Reply, Upstream
from instances import DECODE, PREFILL, Failure, NobodyIsUp, Pool, watch
from metrics import Metrics

log = logging.getLogger("proxy")

_FORWARDED = ("Authorization", "traceparent", "tracestate")
_ADVICE = {
    "connect": "Is it running, and is its --host one that the proxy reaches?",
    "down": "Look at its log; GET /health here says which instances are up.",
    "timeout": "It may have too much to do: add instances, or raise the proxy's time-outs.",
    "status": "Its log says why.",
    "lost": "Did it end? Its log says why.",
    "answer": "Is it started with KvxferConnector in --kv-transfer-config?",
}
_NOBODY = "Start one, or look at its log; GET /health here says which instances are known."


class Proxy:
    """What clients see."""

    def __init__(self, options: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self.prefills = Pool(PREFILL, options.prefill)
        self.decodes = Pool(DECODE, options.decode)
        self.instances = self.prefills.instances + self.decodes.instances
        self.address = ""
        self.draining = False
        self.metrics = Metrics()
        limits = Limits(options.prefill_timeout, options.decode_timeout, options.idle_timeout)
        self._upstream = Upstream(session, limits)
        self._forwarder = Forwarder(
            self._upstream,
            self.prefills,
            self.decodes,
            options.mode == "push",
            options.retries,
            self.metrics,
        )
        self._client_timeout = options.client_timeout
        self._max_body = options.max_body_mb << 20

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self._max_body)
        app.router.add_post("/v1/completions", self.infer)
        app.router.add_post("/v1/chat/completions", self.infer)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.show_metrics)
        app.router.add_route("*", "/{path:.*}", self.unknown)
        return app

    async def infer(self, request: web.Request) -> web.StreamResponse:
        headers = _headers(request)
        ended = "disconnected"
        self.metrics.running += 1
        try:
            response = await self._infer(request, headers)
            ended = str(response.status)
        except ConnectionError as error:  # the client's: those of instances are Failures
            raise asyncio.CancelledError from error
        finally:
            self.metrics.running -= 1
            self.metrics.count("requests_total", path=request.path, status=ended)
        response.headers.setdefault("X-Request-Id", headers["X-Request-Id"])
        return response

    async def _infer(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        if self.draining:
            response = _error(503, "The proxy is being stopped. Send the request to another one.")
            response.force_close()
            return response
        try:
            body = await asyncio.wait_for(self._body(request), self._client_timeout)
        except asyncio.TimeoutError:
            return _error(408, f"The request did not arrive in {self._client_timeout:g} s.")
        if isinstance(body, web.Response):
            return body
        inquiry = Inquiry(request.path, body, headers)
        try:
            reply = await self._forwarder.answer(inquiry)
        except (Failure, NobodyIsUp, Refused) as error:
            return _explain(error)
        try:
            if not reply.is_stream:
                return web.Response(body=reply.first, headers={"Content-Type": reply.content_type})
            return await self._relay(request, inquiry, reply)
        finally:
            reply.close()

    async def _body(self, request: web.Request) -> dict[str, Any] | web.Response:
        try:
            body = json.loads(await request.read())
        except web.HTTPRequestEntityTooLarge:
            return _error(
                413, f"The body is above {self._max_body >> 20} MB, the proxy's --max-body-mb."
            )
        except (ValueError, RecursionError, web.RequestPayloadError) as error:
            return _error(400, f"The body is no JSON: {type(error).__name__}.")
        if not isinstance(body, dict):
            return _error(400, "The body is no JSON object.")
        return body

    async def _relay(
        self, request: web.Request, inquiry: Inquiry, reply: Reply
    ) -> web.StreamResponse:
        """Server-sent events, as they come."""
        response = web.StreamResponse(
            headers={
                "Content-Type": reply.content_type,
                "Cache-Control": "no-cache",
                "X-Request-Id": inquiry.id,
            }
        )
        last = reply.first
        await self._send(request, response.prepare(request))
        await self._send(request, response.write(last))
        try:
            async for last in reply.rest():
                await self._send(request, response.write(last))
        except Failure as failure:
            # The client has part of the answer: nobody else can go on with it.
            self._forwarder.note(inquiry, failure)
            self.metrics.count("broken_streams_total")
            gap = b"" if last.endswith(b"\n\n") else b"\n\n"
            event = json.dumps(_error_body(failure.status, _sentence(failure))).encode()
            await self._send(request, response.write(gap + b"data: " + event + b"\n\n"))
        await self._send(request, response.write_eof())
        return response

    async def _send(self, request: web.Request, sending: Awaitable[Any]) -> None:
        """A client that takes nothing any more is cut off, which cancels the request."""
        stuck = asyncio.get_running_loop().call_later(self._client_timeout, _abort, request)
        try:
            await sending
        finally:
            stuck.cancel()

    async def models(self, request: web.Request) -> web.Response:
        try:
            decode = self.decodes.choose()
            kind, body = await self._upstream.get(decode, "/v1/models", _headers(request))
        except (Failure, NobodyIsUp, Refused) as error:
            return _explain(error)
        return web.Response(body=body, headers={"Content-Type": kind})

    async def health(self, _: web.Request) -> web.Response:
        well = self.prefills.any_is_up() and self.decodes.any_is_up() and not self.draining
        state: dict[str, Any] = {"status": "ok" if well else "unavailable"}
        for pool in (self.prefills, self.decodes):
            state[pool.stage] = [instance.state() for instance in pool.instances]
        return web.json_response(state, status=200 if well else 503)

    async def show_metrics(self, _: web.Request) -> web.Response:
        text = self.metrics.text(self.instances)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def unknown(self, request: web.Request) -> web.Response:
        return _error(404, f"The proxy does not serve {request.method} {request.path}.")


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _headers(request: web.Request) -> dict[str, str]:
    headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
    headers["X-Request-Id"] = request.headers.get("X-Request-Id") or str(uuid.uuid4())
    return headers | {"Content-Type": "application/json"}


def _explain(error: Failure | NobodyIsUp | Refused) -> web.Response:
    if isinstance(error, Refused):
        headers = {"Content-Type": error.content_type}
        return web.Response(status=error.status, body=error.body, headers=headers)
    if isinstance(error, NobodyIsUp):
        return _error(503, f"{_capital(str(error))}. {_NOBODY}")
    return _error(error.status, _sentence(error))


def _sentence(failure: Failure) -> str:
    said = f': "{failure.said}"' if failure.said else ""
    return f"{_capital(str(failure))}{said}. {_ADVICE[failure.kind]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _error(status: int, message: str) -> web.Response:
    return web.json_response(_error_body(status, message), status=status)


def _error_body(status: int, message: str) -> dict[str, Any]:
    """As OpenAI's API has it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


@contextlib.asynccontextmanager
async def started(options: argparse.Namespace) -> AsyncIterator[tuple[Proxy, web.TCPSite]]:
    """A proxy that listens. What still runs in it is cut off at the end."""
    # One connection a request: vLLM may close one that is kept just when it is used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, connect=options.connect_timeout)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, skip_auto_headers=["Accept-Encoding"]
            )
        )
        proxy = Proxy(options, session)
        for instance in proxy.instances:
            watching = watch(instance, session, options.health_interval, options.health_timeout)
            stack.callback(asyncio.ensure_future(watching).cancel)
        runner = web.AppRunner(
            proxy.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        site = web.TCPSite(runner, options.host, options.port, backlog=1024)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log.warning("%s mode, at %s", options.mode, proxy.address)
        yield proxy, site


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT and the end of what runs; a second signal does not wait for that."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    async with started(options) as (proxy, site):
        await stop.wait()
        proxy.draining = True
        await site.stop()
        log.warning("stopping: %d requests are still running", proxy.metrics.running)
        end = loop.time() + options.drain
        while proxy.metrics.running and not hurry.is_set() and loop.time() < end:
            await asyncio.sleep(0.05)
        if proxy.metrics.running:
            log.warning("%d requests are cut off", proxy.metrics.running)


def _url(text: str) -> str:
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise argparse.ArgumentTypeError(f"{text!r} is no http://host:port")
    return url


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return value


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    for stage in (PREFILL, DECODE):
        add(f"--{stage}", type=_url, nargs="+", action="extend", required=True, metavar="URL")
    add("--mode", choices=("pull", "push"), default="pull", help="as the instances are told")
    add("--host", default="127.0.0.1", help="where to listen")
    add("--port", type=_count, default=8000, help="0: any that is free")
    add("--retries", type=_count, default=2, help="further attempts for a request")
    add("--max-body-mb", type=_count, default=64, help="larger requests are refused; 0: none")
    for name, default, what in (
        ("connect-timeout", 3, "for connecting to an instance"),
        ("prefill-timeout", 120, "for the answer of a prefill instance"),
        ("decode-timeout", 600, "for the first byte of a stream, and for all of another answer"),
        ("idle-timeout", 60, "between two pieces of a stream"),
        ("client-timeout", 60, "for a client to send a request, and to take a piece of a stream"),
        ("health-interval", 2, "between two health checks of an instance"),
        ("health-timeout", 5, "for one of them"),
        ("drain", 30, "for running requests after SIGTERM"),
    ):
        add(f"--{name}", type=_seconds, default=float(default), metavar="S", help=what)
    options = parser.parse_args(arguments)
    for stage in (PREFILL, DECODE):
        urls = getattr(options, stage)
        if len(set(urls)) != len(urls):
            parser.error(f"--{stage}: an instance is named twice")
    return options


def main() -> None:
    options = parse_options()
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    # Three sockets a request: the usual 1024 are soon used up.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
