"""How one request goes through a prefill and a decode instance, and what is tried when one of them
fails. Everything here ends by a limit, and ends what it has begun upstream when it is cancelled."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from instances import Failure, Instance, NobodyIsUp, Pool, PushSource
from metrics import Metrics

log = logging.getLogger("proxy")

Params = dict[str, Any]
_T = TypeVar("_T")

_FIRST_TOKEN_ONLY = {"max_tokens": 1, "stream": False}
# min_tokens would contradict that one token, stream_options that it is not streamed.
_NOT_FOR_PREFILL = ("stream_options", "min_tokens")
_UPSTREAM_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
_ASK_PREFILL: Params = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True)
class Limits:
    """In seconds. ``decode``: until the first byte of a stream, or all of another answer; ``idle``:
    between two pieces of a stream."""

    prefill: float
    decode: float
    idle: float


@dataclass(frozen=True)
class Inquiry:
    """What a client wants. ``headers`` go to every instance that is asked."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.headers["X-Request-Id"]

    def is_one_sequence(self) -> bool:
        """One prompt with one answer: kv_transfer_params have room for one, and prefill keeps its
        blocks for one reader. Log probabilities of a prompt need it computed by who tells them."""
        prompt = self.body.get("prompt")
        several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
        answers = [self.body.get(key) or 1 for key in ("n", "best_of")]
        alone = self.body.get("use_beam_search") or self.body.get("prompt_logprobs") is not None
        return not several and answers == [1, 1] and not alone

    def for_prefill(self, params: Params) -> bytes:
        body = {k: v for k, v in self.body.items() if k not in _NOT_FOR_PREFILL}
        body |= _FIRST_TOKEN_ONLY | {"kv_transfer_params": params}
        if self.path.endswith("/chat/completions"):
            body["max_completion_tokens"] = 1
        return json.dumps(body).encode()

    def for_decode(self, params: Params | None) -> bytes:
        """A client's own kv_transfer_params never go through: they say where decode connects to."""
        body = {k: v for k, v in self.body.items() if k != "kv_transfer_params"}
        return json.dumps(body | ({"kv_transfer_params": params} if params else {})).encode()


class Refused(Exception):
    """An instance says that the request itself is wrong: its answer is the client's."""

    def __init__(self, status: int, content_type: str, body: bytes) -> None:
        super().__init__(status)
        self.status, self.content_type, self.body = status, content_type, body


class Reply:
    """A request to a decode instance, from when it is sent until ``close``. Once opened it has the
    status 200 and ``first``: the first piece of a stream, or all of another answer."""

    def __init__(self, instance: Instance, idle_limit: float) -> None:
        self.instance = instance
        self.first = b""
        self.content_type = ""
        self.prefill: asyncio.Task[Any] | None = None  # that may still be going on
        self._idle_limit = idle_limit
        self._response: aiohttp.ClientResponse | None = None
        self._complete = self._closed = False
        instance.in_flight += 1

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    async def open(self, session: aiohttp.ClientSession, inquiry: Inquiry, body: bytes) -> None:
        self._response = response = await session.post(
            self.instance.url + inquiry.path,
            data=io.BytesIO(body),
            headers=inquiry.headers,
            allow_redirects=False,
        )
        self.content_type = response.headers.get("Content-Type", "application/json")
        if response.status == 200 and self.is_stream:
            # vLLM sends the status before it has computed anything; only this tells that it works.
            self.first = await response.content.readany()
            if not self.first:
                raise Failure(self.instance, "lost", "ended the stream before it began")
            return
        self.first = await response.read()
        _check(self.instance, response.status, self.content_type, self.first)
        self._complete = True

    async def rest(self) -> AsyncIterator[bytes]:
        """The pieces of a stream after the first one."""
        assert self._response is not None
        content = self._response.content
        while True:
            try:
                piece = await asyncio.wait_for(content.readany(), self._idle_limit)
            except _UPSTREAM_ERRORS as error:
                raise _failure(self.instance, error, self._idle_limit) from error
            if not piece:
                self._complete = True
                return
            yield piece

    def close(self) -> None:
        """In the middle of an answer it closes the connection: vLLM then aborts the request."""
        if self._closed:
            return
        self._closed = True
        self.instance.in_flight -= 1
        if self._response is not None:
            self._response.close()
        if self.prefill is not None and not self._complete:
            _drop(self.prefill)


class Upstream:
    """One request to one instance."""

    def __init__(self, session: aiohttp.ClientSession, limits: Limits) -> None:
        """The session limits how long connecting takes, and nothing else."""
        self._session, self._limits = session, limits

    async def prefill(self, instance: Instance, inquiry: Inquiry, params: Params) -> Params | None:
        """The kv_transfer_params of its answer. Failure, Refused."""
        body = inquiry.for_prefill(params)
        instance.in_flight += 1
        try:
            asking = self._ask(instance, "POST", inquiry.path, inquiry.headers, body)
            _, answer = await self._within(instance, self._limits.prefill, asking)
        finally:
            instance.in_flight -= 1
        try:
            found = json.loads(answer).get("kv_transfer_params")
        except (ValueError, AttributeError, RecursionError):
            raise Failure(instance, "answer", "answered 200 with what is no JSON object") from None
        return found if isinstance(found, dict) else None

    async def decode(self, instance: Instance, inquiry: Inquiry, params: Params | None) -> Reply:
        """An answer that has begun. Failure, Refused."""
        body = inquiry.for_decode(params)
        reply = Reply(instance, self._limits.idle)
        try:
            opening = reply.open(self._session, inquiry, body)
            await self._within(instance, self._limits.decode, opening)
        except BaseException:
            reply.close()
            raise
        return reply

    async def release(
        self, instance: Instance, headers: Mapping[str, str], params: Params
    ) -> None:
        """Tells a prefill instance that nobody will read the blocks that its ``params`` refer to, by
        the smallest request there is: what decode has refused before its connector saw it, or never
        got, nobody else gives back before the lease ends. Failure, Refused."""
        reference = params.get("kvxfer")
        if not isinstance(reference, dict):
            return
        body = {
            "prompt": [0],
            "max_tokens": 1,
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "kvxfer": reference | {"mode": "release"},
            },
        }
        own = dict(headers) | {"X-Request-Id": f"release-{uuid.uuid4().hex}"}
        asking = self._ask(instance, "POST", "/v1/completions", own, json.dumps(body).encode())
        await self._within(instance, self._limits.idle, asking)

    async def get(
        self, instance: Instance, path: str, headers: Mapping[str, str]
    ) -> tuple[str, bytes]:
        """Content type and body. Failure, Refused."""
        asking = self._ask(instance, "GET", path, headers)
        return await self._within(instance, self._limits.idle, asking)

    async def _ask(
        self,
        instance: Instance,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> tuple[str, bytes]:
        url = instance.url + path
        data = None if body is None else io.BytesIO(body)
        async with self._session.request(
            method, url, data=data, headers=headers, allow_redirects=False
        ) as response:
            content_type = response.headers.get("Content-Type", "application/json")
            answer = await response.read()
            _check(instance, response.status, content_type, answer)
            return content_type, answer

    async def _within(self, instance: Instance, limit: float, work: Coroutine[Any, Any, _T]) -> _T:
        """Ends by the limit, and at once when the instance is found to be down: a host that is gone
        answers nothing, and does not close connections either."""
        task = asyncio.ensure_future(work)
        down = asyncio.ensure_future(instance.down.wait())
        try:
            await asyncio.wait({task, down}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if down.done():
                raise Failure(instance, "down", "does not answer its health checks any more")
            raise asyncio.TimeoutError
        except _UPSTREAM_ERRORS as error:
            raise _failure(instance, error, limit) from error
        finally:
            down.cancel()
            _drop(task)


class Forwarder:
    """One request through both stages."""

    def __init__(
        self,
        upstream: Upstream,
        prefills: Pool,
        decodes: Pool,
        push: bool,
        retries: int,
        metrics: Metrics,
    ) -> None:
        self._upstream, self._prefills, self._decodes = upstream, prefills, decodes
        self._push_mode, self._retries, self._metrics = push, retries, metrics
        self._kept: set[asyncio.Task[Any]] = set()  # asyncio itself keeps tasks weakly only

    async def answer(self, inquiry: Inquiry) -> Reply:
        """To be closed by the caller. Nothing of it was sent to the client: until here all may be
        begun anew. Failure or NobodyIsUp, of the last attempt; Refused."""
        failed: set[Instance] = set()
        last: Failure | None = None
        for _ in range(self._retries + 1):
            if last is not None:
                self._metrics.count("retries_total", stage=last.instance.stage)
            try:
                return await self._attempt(inquiry, failed)
            except Failure as failure:
                self.note(inquiry, failure)
                failed.add(failure.instance)
                last = failure
            except NobodyIsUp as nobody:
                raise last or nobody from None
        assert last is not None
        raise last

    def note(self, inquiry: Inquiry, failure: Failure) -> None:
        log.warning("request %s: %s", inquiry.id, failure)
        instance = failure.instance
        self._metrics.count(
            "failures_total", stage=instance.stage, instance=instance.url, kind=failure.kind
        )

    async def _attempt(self, inquiry: Inquiry, failed: set[Instance]) -> Reply:
        if not self._decodes.any_is_up():
            raise NobodyIsUp(self._decodes.stage)  # before anything is computed in vain
        if not inquiry.is_one_sequence():
            self._metrics.count("flows_total", flow="decode_only")
            return await self._decode(inquiry, None, failed)
        prefill = self._prefills.choose(failed)
        source = prefill.push_source
        if self._push_mode and source is not None:
            self._metrics.count("flows_total", flow="push")
            try:
                return await self._push(inquiry, prefill, source, failed)
            except Failure:
                prefill.push_source = None  # perhaps out of date: the next attempt goes without
                raise
        self._metrics.count("flows_total", flow="push_sequential" if self._push_mode else "pull")
        params = await self._prefill(prefill, inquiry, _ASK_PREFILL)
        if params is None:
            raise Failure(prefill, "answer", "answered without kv_transfer_params")
        return await self._decode_from(prefill, inquiry, params, failed)

    async def _decode(
        self, inquiry: Inquiry, params: Params | None, failed: set[Instance]
    ) -> Reply:
        return await self._upstream.decode(self._decodes.choose(failed), inquiry, params)

    async def _decode_from(
        self, prefill: Instance, inquiry: Inquiry, params: Params, failed: set[Instance]
    ) -> Reply:
        try:
            return await self._decode(inquiry, params, failed)
        except BaseException:
            self._give_back(prefill, inquiry, params)
            raise

    def _give_back(self, prefill: Instance, inquiry: Inquiry, params: Params) -> None:
        """Nobody waits for it, and where it fails the lease ends by itself."""

        async def give_back() -> None:
            try:
                await self._upstream.release(prefill, inquiry.headers, params)
            except (Failure, Refused) as error:
                log.warning("request %s: its blocks are not given back: %s", inquiry.id, error)

        self._keep(asyncio.ensure_future(give_back()))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _prefill(self, prefill: Instance, inquiry: Inquiry, ask: Params) -> Params | None:
        params = await self._upstream.prefill(prefill, inquiry, ask)
        learnt = PushSource.of(params)
        if learnt is not None:
            prefill.push_source = learnt
        return params

    async def _push(
        self, inquiry: Inquiry, prefill: Instance, source: PushSource, failed: set[Instance]
    ) -> Reply:
        """Both are asked at once: decode makes room, prefill writes into it while it computes."""
        transfer = uuid.uuid4().hex
        ask = _ASK_PREFILL | {"kvxfer": {"transfer": transfer}}
        prefilling = asyncio.ensure_future(self._prefill(prefill, inquiry, ask))
        room = source.params(transfer)
        decoding = asyncio.ensure_future(self._decode(inquiry, room, failed))
        try:
            await asyncio.wait({prefilling, decoding}, return_when=asyncio.FIRST_COMPLETED)
            restarted = (
                prefilling.done()
                and not _is_well(decoding)
                and PushSource.of(prefilling.result()) not in (None, source)
            )
            reply = None if restarted else await decoding
        except BaseException:
            # Of a prefill instance that was restarted only its answer says where it is.
            answered = prefilling.result() if _is_well(prefilling) else None
            self._give_back(prefill, inquiry, answered or room)
            _drop(prefilling)
            _drop(decoding)
            raise
        if reply is None:  # decode waits for the former life of prefill
            _drop(decoding)
            return await self._decode_from(prefill, inquiry, prefilling.result() or {}, failed)
        # It may be a moment behind decode. Only a reply that is broken off ends it.
        reply.prefill = prefilling
        self._keep(prefilling)
        prefilling.add_done_callback(_close_result)
        return reply


def _is_well(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _drop(task: asyncio.Task[Any]) -> None:
    """Ends a task that nobody waits for any more, and what it may have brought."""
    task.cancel()
    task.add_done_callback(_close_result)


def _close_result(task: asyncio.Task[Any]) -> None:
    # Asking for the exception also tells asyncio that it was seen.
    if _is_well(task) and isinstance(task.result(), Reply):
        task.result().close()


def _check(instance: Instance, status: int, content_type: str, body: bytes) -> None:
    if status == 200:
        return
    if 400 <= status < 500:
        raise Refused(status, content_type, body)
    raise Failure(instance, "status", f"answered {status}", said=_message(body))


def _message(body: bytes) -> str:
    """Of an error as vLLM answers it."""
    try:
        return str(json.loads(body)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _failure(instance: Instance, error: BaseException, limit: float) -> Failure:
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        instance.unreachable()
        why = error.strerror if isinstance(error, aiohttp.ClientConnectorError) else "no answer"
        return Failure(instance, "connect", f"cannot be connected to ({why})")
    if isinstance(error, asyncio.TimeoutError):
        return Failure(instance, "timeout", f"said nothing for {limit:g} s", status=504)
    return Failure(instance, "lost", f"closed the connection ({type(error).__name__})")
