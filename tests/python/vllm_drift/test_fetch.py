"""Over a server of its own, with ranges and without, and a wheel of two files."""

from __future__ import annotations

import hashlib
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fetch
import pytest

_WANTED = b"wanted = True\n"


class _Server:
    def __init__(self, content: bytes) -> None:
        self.has_ranges = True
        self.sent = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
                assert asked is not None
                body = content
                if outer.has_ranges:
                    body = content[int(asked[1]) : int(asked[2]) + 1]
                self.send_response(206 if outer.has_ranges else 200)
                self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{len(content)}")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                outer.sent += len(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/vllm_x86_64.whl"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def wheel(tmp_path: Path) -> bytes:
    path = tmp_path / "wheel"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("large.so", bytes(8 << 20))
        file.writestr("vllm/wanted.py", _WANTED)
    return path.read_bytes()


@pytest.fixture
def server(wheel: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    found = _Server(wheel)
    entry = {"url": found.url, "hashes": {"sha256": hashlib.sha256(wheel).hexdigest()}}
    monkeypatch.setattr(fetch, "_find_wheel", lambda: entry)
    monkeypatch.setattr(fetch, "_CACHE", tmp_path)
    monkeypatch.setattr(fetch, "_PINS", tmp_path / "pins")
    (tmp_path / "pins").write_text(f"{hashlib.sha256(_WANTED).hexdigest()}  vllm/wanted.py\n")
    yield found
    found.close()


def test_only_what_is_wanted_is_fetched_and_once(server: _Server) -> None:
    folder = fetch.fetch()
    assert (folder / "vllm/wanted.py").read_bytes() == _WANTED
    assert not (folder / "large.so").exists()
    assert server.sent < 1 << 20
    sent = server.sent
    fetch.fetch()
    assert server.sent == sent


def test_an_altered_file_is_fetched_anew(server: _Server) -> None:
    (fetch.fetch() / "vllm/wanted.py").write_text("wanted = False\n")
    assert (fetch.fetch() / "vllm/wanted.py").read_bytes() == _WANTED


def test_without_ranges_all_is_fetched(server: _Server) -> None:
    server.has_ranges = False
    assert (fetch.fetch() / "vllm/wanted.py").read_bytes() == _WANTED


def test_another_wheel_than_the_index_has_is_refused(
    server: _Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.has_ranges = False
    entry = {"url": server.url, "hashes": {"sha256": "0" * 64}}
    monkeypatch.setattr(fetch, "_find_wheel", lambda: entry)
    with pytest.raises(ValueError, match="not the one that the index lists"):
        fetch.fetch()


def test_another_file_than_is_pinned_is_refused(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "pins").write_text("0" * 64 + "  vllm/wanted.py\n")
    with pytest.raises(ValueError, match="is not the one that pins lists"):
        fetch.fetch()
    assert not (tmp_path / f"vllm-{fetch.VERSION}/vllm/wanted.py").exists()


def test_files_are_pinned_by_name(server: _Server, tmp_path: Path) -> None:
    (tmp_path / "pins").unlink()
    fetch.pin(["vllm/wanted.py"])
    assert (fetch.fetch() / "vllm/wanted.py").read_bytes() == _WANTED


def test_no_server_is_said(server: _Server) -> None:
    server.close()
    with pytest.raises(fetch.Unavailable, match="cannot be had"):
        fetch.fetch()


def test_no_uv_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_CACHE", tmp_path)
    with pytest.raises(fetch.Unavailable, match="python-env setup"):
        fetch.fetch()


def test_no_index_is_said_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(
        "#!/bin/sh\necho cannot reach https://user:word@index.invalid/simple >&2; exit 1\n"
    )
    uv.chmod(0o755)
    monkeypatch.setattr(fetch, "_CACHE", tmp_path)
    with pytest.raises(fetch.Unavailable) as caught:
        fetch.fetch()
    assert str(caught.value) == f"uv finds no vLLM {fetch.VERSION}: cannot reach ..."
