"""The program: its options, what it writes, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")

from proxy_cluster import DONE, PIECES, PROMPT, Fake, arguments, becomes, started_fakes

PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "vllm_pd" / "proxy.py"


class Program:
    """A proxy in a process of its own, with one instance of each stage."""

    def __init__(self, process: asyncio.subprocess.Process, fakes: list[Fake]) -> None:
        self._process = process
        self.prefill, self.decode = fakes
        self.url = ""
        self.log = ""

    async def wait_until_up(self) -> None:
        await self._read_until(" mode, at ")
        self.url = self.log.split()[-1]
        while f"decode instance {self.decode.url} is up" not in self.log or (
            f"prefill instance {self.prefill.url} is up" not in self.log
        ):
            await self._read_until(" is up")

    async def _read_until(self, words: str) -> None:
        assert self._process.stderr is not None
        while line := (await self._process.stderr.readline()).decode():
            self.log += line
            if words in line:
                return
        raise AssertionError(f"it ended: {self.log}")

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def stopping(self) -> None:
        await self._read_until("stopping: ")

    async def status(self) -> int:
        assert self._process.stderr is not None
        self.log += (await self._process.stderr.read()).decode()
        return await self._process.wait()


@contextlib.asynccontextmanager
async def running(*options: str) -> AsyncIterator[Program]:
    async with started_fakes(1, 1) as fakes:
        process = await asyncio.create_subprocess_exec(
            sys.executable, PROGRAM, *arguments(fakes, *options), stderr=asyncio.subprocess.PIPE
        )
        program = Program(process, fakes)
        try:
            await program.wait_until_up()
            yield program
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_a_signal(number: signal.Signals) -> None:
    async def main() -> None:
        async with running() as program:
            program.signal(number)
            assert await program.status() == 0
            assert "Traceback" not in program.log

    _run(main())


def test_what_is_running_comes_to_its_end() -> None:
    async def main() -> None:
        async with running() as program, aiohttp.ClientSession() as session:
            program.decode.pauses_after = 1
            program.decode.goes_on.clear()
            url = f"{program.url}/v1/completions"
            async with session.post(url, json=PROMPT | {"stream": True}) as response:
                assert await response.content.readany() == PIECES[0].encode()
                program.signal()
                await program.stopping()
                with pytest.raises(aiohttp.ClientConnectorError):
                    await session.post(url, json=PROMPT)
                program.decode.goes_on.set()
                rest = (await response.content.read()).decode()
            assert rest == "".join(PIECES[1:]) + DONE
            assert await program.status() == 0
            assert program.decode.aborted == 0

    _run(main())


def test_a_connection_that_is_kept_brings_nothing_new() -> None:
    async def main() -> None:
        async with running() as program, aiohttp.ClientSession() as session:
            async with session.get(f"{program.url}/health") as response:
                assert response.status == 200
                await response.read()
            program.decode.goes_on.clear()
            host, port = program.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            await becomes(lambda: len(program.decode.asked) == 1)
            program.signal()
            await program.stopping()
            async with session.get(f"{program.url}/health") as response:
                assert response.status == 503
                await response.read()
            async with session.post(f"{program.url}/v1/completions", json=PROMPT) as response:
                assert response.status == 503
                assert "being stopped" in await response.text()
            program.decode.goes_on.set()
            assert await program.status() == 0
            writer.close()

    _run(main())


@pytest.mark.parametrize("again", [False, True], ids=["after its time", "at a second signal"])
def test_what_does_not_end_is_cut_off(again: bool) -> None:
    async def main() -> None:
        limit = "600" if again else "0.3"
        async with running("--drain", limit) as program, aiohttp.ClientSession() as session:
            program.decode.goes_on.clear()
            url = f"{program.url}/v1/completions"
            asking = asyncio.ensure_future(session.post(url, json=PROMPT))
            await becomes(lambda: len(program.decode.asked) == 1)
            begun = time.monotonic()
            program.signal()
            await program.stopping()
            if again:
                program.signal()
            with pytest.raises(aiohttp.ClientError):
                await asking
            assert await program.status() == 0
            assert time.monotonic() - begun < 3
            assert "1 requests are cut off" in program.log
            await becomes(lambda: program.decode.aborted == 1)

    _run(main())


def test_neither_prompt_nor_answer_is_logged() -> None:
    async def main() -> None:
        async with running("--retries", "0") as program, aiohttp.ClientSession() as session:
            url = f"{program.url}/v1/completions"
            for status in (200, 400, 500):
                program.decode.status = status
                async with session.post(url, json=PROMPT) as response:
                    await response.read()
            program.signal()
            assert await program.status() == 0
            assert "answered 500" in program.log
            assert "Hello" not in program.log and "because of" not in program.log

    _run(main())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "required: --prefill, --decode"),
        (["--prefill", "a:1", "--decode", "ftp://b:1"], "no http://host:port"),
        (["--prefill", "a:1", "http://a:1", "--decode", "b:1"], "named twice"),
        (["--prefill", "a:1", "--decode", "b:1", "--drain", "0"], "no time in seconds"),
        (["--prefill", "a:1", "--decode", "b:1", "--retries", "-1"], "below 0"),
        (["--prefill", "a:1", "--decode", "b:1", "--mode", "both"], "invalid choice"),
    ],
)
def test_options_that_are_wrong(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from proxy import parse_options

    with pytest.raises(SystemExit):
        parse_options(options)
    assert why in capsys.readouterr().err


def test_instances_may_be_named_together_or_one_by_one() -> None:
    from proxy import parse_options

    options = parse_options(["--prefill", "a:1", "b:1", "--prefill", "c:1", "--decode", "[::1]:2/"])
    assert options.prefill == ["http://a:1", "http://b:1", "http://c:1"]
    assert options.decode == ["http://[::1]:2"]
