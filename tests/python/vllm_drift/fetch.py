#!/usr/bin/env python3
"""Files of a vLLM that cannot run here (its wheel needs CUDA), to be read: those that a file of
hashes beside this one lists, out of the wheel of the configured package index, by ranges of it.

    fetch.py             those that are not there yet, into build/python-env/vllm-VERSION
    fetch.py pin PATH... also these, whose hashes are added to the list
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

VERSION = "0.33.0"

_ROOT = Path(__file__).resolve().parents[3]
_PINS = Path(__file__).with_name(f"vllm-{VERSION}.sha256")
_CACHE = Path(os.environ.get("PYTHON_ENV_CACHE") or _ROOT / "build/python-env")
_TIMEOUT_S = 60
_CHUNK = 1 << 17


class Unavailable(Exception):
    """There is no package index here, or none that has that wheel."""


def fetch() -> Path:
    """The folder with the files, as listed. ValueError: the wheel has others."""
    folder = _CACHE / f"vllm-{VERSION}"
    pins = _read_pins()
    absent = [path for path in pins if _hash_of(folder / path) != pins[path]]
    if absent:
        with _open_wheel() as wheel:
            for path in absent:
                content = wheel.read(path)
                if hashlib.sha256(content).hexdigest() != pins[path]:
                    raise ValueError(f"{path} is not the one that {_PINS.name} lists")
                _write(folder / path, content)
    return folder


def pin(paths: list[str]) -> None:
    pins = _read_pins()
    with _open_wheel() as wheel:
        for path in paths:
            pins[path] = hashlib.sha256(wheel.read(path)).hexdigest()
    _PINS.write_text("".join(f"{pins[path]}  {path}\n" for path in sorted(pins)))


def _read_pins() -> dict[str, str]:
    lines = _PINS.read_text().splitlines() if _PINS.exists() else []
    return {path: digest for digest, path in (line.split("  ") for line in lines)}


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else does the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _open_wheel() -> zipfile.ZipFile:
    """BadZipFile from here on: a file whose checksum in the wheel is another."""
    entry = _find_wheel()
    try:
        return zipfile.ZipFile(_open(entry["url"], entry["hashes"]["sha256"]))
    except (OSError, HTTPException) as error:
        raise Unavailable(f"the wheel of vLLM {VERSION} cannot be had: {error}") from error


def _find_wheel() -> dict[str, Any]:
    """As the index has it. uv is the one that the environments are made with, and is configured as
    it was for them."""
    uv = _CACHE / "uv/bin/uv"
    if not uv.exists():
        raise Unavailable("uv is not there: tests/python/environment/python-env setup")
    command = [
        str(uv),
        "pip",
        "compile",
        "-q",
        "--no-deps",
        "--no-header",
        "--format",
        "pylock.toml",
    ]
    command += ["--python", sys.executable, "--python-platform", "x86_64-manylinux_2_28", "-"]
    said = subprocess.run(
        command, input=f"vllm=={VERSION}", capture_output=True, text=True, cwd=_ROOT
    )
    if said.returncode != 0:
        why = " ".join(re.sub(r"\S+://\S+", "...", said.stderr).split())
        raise Unavailable(f"uv finds no vLLM {VERSION}: {why}")
    for package in tomllib.loads(said.stdout)["packages"]:
        for wheel in package.get("wheels", []):
            if wheel.get("url", "").endswith("_x86_64.whl"):
                return dict(wheel)
    raise Unavailable(f"the index has no wheel of vLLM {VERSION} for x86_64")


def _open(url: str, digest: str) -> IO[bytes]:
    first = _request(url, 0, 1)
    if first.status == 206:
        size = int(first.headers["Content-Range"].rpartition("/")[2])
        return io.BufferedReader(_Ranges(url, size), _CHUNK)
    # A server that has no ranges sends all of it.
    whole = tempfile.TemporaryFile()
    found = hashlib.sha256()
    while block := first.read(_CHUNK):
        whole.write(block)
        found.update(block)
    if found.hexdigest() != digest:
        raise ValueError(f"the wheel of vLLM {VERSION} is not the one that the index lists")
    return whole


def _request(url: str, first: int, size: int) -> Any:
    request = urllib.request.Request(url, headers={"Range": f"bytes={first}-{first + size - 1}"})
    return urllib.request.urlopen(request, timeout=_TIMEOUT_S)


class _Ranges(io.RawIOBase):
    """A file on a server, of which only what is read is fetched."""

    def __init__(self, url: str, size: int) -> None:
        self._url = url
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), self._size - self._position)
        if size <= 0:
            return 0
        with _request(self._url, self._position, size) as response:
            content = response.read()
        if response.status != 206 or len(content) != size:
            raise OSError("the server does not send the range it was asked for")
        buffer[:size] = content
        self._position += size
        return size


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["pin"]:
            pin(arguments[1:])
        print(fetch())
    except Unavailable as why:
        print(why, file=sys.stderr)
        return 125
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
