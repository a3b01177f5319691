"""tests/gpu/model.py over host memory, with few prompts; scripts/gpu-test runs it on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "gpu" / "model.py"


@pytest.mark.torch
def test_decode_in_another_process_finds_the_same_tokens() -> None:
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--small"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed"
