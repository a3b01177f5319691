"""`vllm serve` instances behind the example's proxy, as its script starts them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from free_ports import free_port
from tiny_model import VOCABULARY, write_tiny_model

_SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "vllm_pd" / "run.sh"
_UP_S = 240.0
_DOWN_S = 60.0


def write_served_model(folder: Path, seed: int) -> None:
    """With a tokenizer whose text is the numbers of the tokens: "t7 t12"."""
    write_tiny_model(folder, seed)
    model = {
        "type": "WordLevel",
        "vocab": {f"t{token}": token for token in range(VOCABULARY)},
        "unk_token": "t0",
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": model,
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t1"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


class Cluster:
    """One prefill and one decode instance, and the proxy. Ended by close()."""

    def __init__(self, model: Path, logs: Path, mode: str, *options: str) -> None:
        self.model = str(model)
        self.port = free_port(100, 200)
        self._logs = logs
        self._output = logs / "run.log"
        environment = dict(os.environ) | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KVXFER_CPU": "1",
            "KVXFER_WAIT": str(int(_UP_S)),
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(logs),
            "VLLM_CACHE_ROOT": str(logs / "cache"),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = ["bash", str(_SCRIPT), "--model", self.model, "--logs", str(logs)]
        command += ["--mode", mode, "--port", str(self.port), *options, "--"]
        command += ["--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
        command += ["--num-gpu-blocks-override", "512", "--shutdown-timeout", "20"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        end = time.monotonic() + _UP_S
        while "All are up" not in self._output.read_text():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"it did not start:\n{self.logs_tail()}")
            time.sleep(0.2)

    @property
    def prefill_port(self) -> int:
        return self.port + 100

    @property
    def decode_port(self) -> int:
        return self.port + 200

    def body(self, prompt: list[int], tokens: int, **options: Any) -> bytes:
        asked = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return json.dumps(asked | options).encode()

    def ask(self, prompt: list[int], tokens: int, port: int = 0) -> str:
        """The text that a client gets of the proxy, or of who listens at `port`."""
        with self.post(self.body(prompt, tokens), port) as answer:
            text: str = json.load(answer)["choices"][0]["text"]
        return text

    def stream(self, prompt: list[int], tokens: int) -> Iterator[str]:
        with self.post(self.body(prompt, tokens, stream=True)) as answer:
            for line in answer:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])["choices"][0]["text"]

    def post(self, body: bytes, port: int = 0) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port or self.port}/v1/completions",
            body,
            {"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=60)

    def metrics(self, port: int) -> dict[str, float]:
        """Of one instance, by name, summed over labels."""
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if not line.startswith("#"):
                    name, value = line.rsplit(" ", 1)
                    name = name.partition("{")[0]
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def terminate(self) -> None:
        """As an orchestrator does; each process hears of it. Returns at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        self._process.wait(_DOWN_S)

    def close(self) -> None:
        self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise RuntimeError(f"it did not end in {_DOWN_S:.0f} s:\n{self.logs_tail()}") from None

    def complaints(self) -> str:
        """What kvxfer has logged as wrong, of every process."""
        lines = [
            f"{path.name}: {line}"
            for path in sorted(self._logs.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if "kvxfer: " in line and ("ERROR" in line or "WARNING" in line)
        ]
        return "\n".join(lines)

    def logs_tail(self) -> str:
        parts = []
        for path in sorted(self._logs.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-25:]
            parts += [f"== {path.name}", *lines]
        return "\n".join(parts)
