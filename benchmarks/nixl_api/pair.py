"""A contestant's two processes, told what to do by lines of JSON.

Not thread-safe. Every wait has a time-out; whatever goes wrong is a PairError of one line.
"""

import json
import os
import selectors
import subprocess
import tempfile
import time
from typing import Any

from contestants import DROP_IN, Contestant
from places import Places

ROLES = ("prefill", "decode")
_PAGE_BYTES = 1 << 16
_PATIENCE_S = 180.0


class PairError(Exception):
    """A contestant failed; the text says which one and how."""


class _Process:
    def __init__(self, label: str, command: list[str], environment: dict, descriptor: int) -> None:
        self.label = label
        self._rest = b""
        self._log = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=environment, pass_fds=[descriptor],
        )  # fmt: skip
        assert self._child.stdin is not None and self._child.stdout is not None
        self._in, self.out = self._child.stdin, self._child.stdout

    def say(self, order: dict) -> None:
        try:
            self._in.write(json.dumps(order).encode() + b"\n")
            self._in.flush()
        except OSError:
            pass  # it has ended; the answer's end of file says how

    def take(self) -> list[dict]:
        """Reads what is there; the answers that are whole by now."""
        data = os.read(self.out.fileno(), 1 << 20)
        if not data:
            raise PairError(f"{self.label} ended with {self._child.wait()}: {self._last_words()}")
        *lines, self._rest = (self._rest + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            if "error" in answer:
                raise PairError(f"{self.label}: {answer['error']}: {self._last_words()}")
        return answers

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()
        self._in.close()
        self.out.close()
        self._log.close()


class Pair:
    """Use as a context manager."""

    def __init__(
        self, contestant: Contestant, places: Places, cache: dict, seed: int, device: int | None
    ) -> None:
        self.name = contestant.name
        self._sides: dict[str, _Process] = {}
        drop_in = contestant.kind == DROP_IN
        environment = places.environment(contestant.environment, drop_in)
        page = os.memfd_create("seen")
        try:
            os.ftruncate(page, _PAGE_BYTES)
            options = {"config": contestant.config, "cache": cache, "seed": seed, "device": device,
                       "seen_fd": page}  # fmt: skip
            for role in ROLES:
                command = [*places.command(), json.dumps({"role": role, **options})]
                label = f"{contestant.name}, {role} side"
                self._sides[role] = _Process(label, command, environment, page)
            self.version = self._answers(ROLES)["decode"]["version"]
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(page)
        if ("drop-in" in self.version) != drop_in:
            self.stop()
            raise PairError(f"{self.name}: `import nixl` found {self.version}")

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tell(self, role: str, do: str, **arguments: Any) -> dict:
        self._sides[role].say({"do": do, **arguments})
        return self._answers([role])[role]

    def both(self, do: str) -> dict[str, dict]:
        for role in ROLES:
            self._sides[role].say({"do": do})
        return self._answers(ROLES)

    def served(self, count: int, idle: bool, do: str, **arguments: Any) -> dict:
        """What decode answers, while prefill serves ``count`` transfers."""
        return self.beside({"do": "serve", "count": count, "idle": idle}, do, **arguments)

    def beside(self, prefill: dict, do: str, **arguments: Any) -> dict:
        """What decode answers, while prefill does what that order says."""
        self._sides["prefill"].say(prefill)
        self._sides["decode"].say({"do": do, **arguments})
        return self._answers(ROLES)["decode"]

    def stop(self) -> None:
        for side in self._sides.values():
            side.stop()
        self._sides = {}

    def _answers(self, roles: Any) -> dict[str, dict]:
        """One answer of each; the first failure of either side ends the wait."""
        answers: dict[str, dict] = {}
        end = time.monotonic() + _PATIENCE_S
        with selectors.DefaultSelector() as selector:
            for role in roles:
                selector.register(self._sides[role].out, selectors.EVENT_READ, role)
            while len(answers) < len(roles):
                ready = selector.select(max(end - time.monotonic(), 0))
                if not ready:
                    raise PairError(f"{self.name} gave no answer within {_PATIENCE_S:.0f} s")
                for key, _ in ready:
                    for answer in self._sides[key.data].take():
                        answers[key.data] = answer
                        selector.unregister(key.fileobj)
        return answers
