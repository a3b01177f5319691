"""One contestant's two processes, alive over a whole group, told what to do by lines of JSON.

Not thread-safe. Every wait has a time-out; whatever goes wrong is a ContestantError of one line.
"""

import json
import os
import selectors
import signal
import subprocess
import time

ROLES = ("prefill", "decode")


class ContestantError(Exception):
    """A contestant failed; the text says which one, how, and where its log is."""


class _Process:
    """One side. Its standard error, and what it prints besides answers, goes to a log."""

    def __init__(self, label, command, environment, log_path, descriptor, cpus):
        self.label, self.log_path = label, log_path
        self._rest = b""
        pin = (lambda: os.sched_setaffinity(0, cpus)) if cpus else None
        try:
            # Held open by the child alone.
            with open(log_path, "wb") as log:
                self._child = subprocess.Popen(command, stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, stderr=log,
                                               env=environment, preexec_fn=pin,
                                               pass_fds=[descriptor])
        except OSError as error:
            raise ContestantError(f"{label} could not be started: {error}") from error

    def say(self, order):
        try:
            self._child.stdin.write(json.dumps(order).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            pass  # it has ended; the answer's end of file says how

    def output(self):
        return self._child.stdout

    def signal(self, number):
        if self._child.poll() is None:
            self._child.send_signal(number)

    def take(self):
        """Reads what is there; the answers that are whole by now, oldest first."""
        data = os.read(self._child.stdout.fileno(), 1 << 20)
        if not data:
            self._child.wait()
            raise ContestantError(f"{self.label} ended {self._how()}; its log: {self.log_path}")
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        return [self._answer(line) for line in lines if line.startswith(b"{")]

    def _answer(self, line):
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise ContestantError(f"{self.label} answered no JSON; its log: {self.log_path}"
                                  ) from error
        if "error" in answer:
            raise ContestantError(f"{self.label}: {answer['error']}")
        return answer

    def _how(self):
        status = self._child.returncode
        return f"by signal {-status}" if status < 0 else f"with exit status {status}"

    def stop(self):
        self.signal(signal.SIGKILL)
        self._child.wait()
        self._child.stdin.close()
        self._child.stdout.close()


class Pair:
    """`command(role)` starts one side, which inherits the descriptor caches[role]; `cpus[role]`
    are the only ones that it may use. Use as a context manager, or call stop()."""

    def __init__(self, name, command, environment, log_folder, caches, cpus=None, pause=False,
                 patience=120.0):
        self.name, self._pause, self._patience = name, pause, patience
        self._sides = {}
        try:
            for role in ROLES:
                log = "".join(c if c.isalnum() else "-" for c in f"{name}-{role}")
                self._sides[role] = _Process(f"{name}, {role} side", command(role), environment,
                                             os.path.join(log_folder, log + ".log"),
                                             caches[role], (cpus or {}).get(role))
            hello = self._answers(ROLES)
            self._tell({role: {"cmd": "meet", "hello": hello[other]["hello"]}
                        for role, other in zip(ROLES, reversed(ROLES))})
        except BaseException:
            self.stop()
            raise
        self.rest()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def prepare(self, block_bytes, blocks, seed):
        """The work of the rounds that follow: fills the source, clears the target. Returns by role
        what the sides say of it: its fingerprint, which is workload.fingerprint's."""
        order = {"cmd": "prepare", "block_bytes": block_bytes, "blocks": blocks, "seed": seed}
        return self._tell({role: order for role in ROLES})

    def rounds(self, count):
        """The answers of both sides by role: seconds of each round, cpu_s, preparing_s."""
        # The decode side first: it must wait for what the other sends.
        order = {"cmd": "rounds", "count": count}
        return self._tell({role: order for role in reversed(ROLES)})

    def check(self):
        """Every byte at the decode side, or ContestantError."""
        self._tell({"decode": {"cmd": "check"}})

    def wake(self):
        if self._pause:
            self._signal(signal.SIGCONT)

    def rest(self):
        if self._pause:
            self._signal(signal.SIGSTOP)

    def stop(self):
        for side in self._sides.values():
            side.stop()
        self._sides = {}

    def _signal(self, number):
        for side in self._sides.values():
            side.signal(number)

    def _tell(self, orders):
        for role, order in orders.items():
            self._sides[role].say(order)
        return self._answers(orders)

    def _answers(self, roles):
        """One answer of each role; the first failure of either side ends the wait."""
        answers = {}
        end = time.monotonic() + self._patience
        with selectors.DefaultSelector() as selector:
            for role in roles:
                selector.register(self._sides[role].output(), selectors.EVENT_READ, role)
            while len(answers) < len(roles):
                ready = selector.select(max(end - time.monotonic(), 0))
                if not ready:
                    late = ", ".join(role for role in roles if role not in answers)
                    raise ContestantError(f"{self.name} gave no answer within "
                                          f"{self._patience:.0f} s (waiting for: {late})")
                for key, _ in ready:
                    for answer in self._sides[key.data].take():
                        answers[key.data] = answer
                        selector.unregister(key.fileobj)
        return answers
