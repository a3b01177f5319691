from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sglang_pair


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Any:
    users = os.environ.get("KVXFER_TEST_USERS_PATH")
    if users is None or not (Path(users) / "sglang").is_dir():
        pytest.skip("no sglang here: tests/python/environment/python-env has it")
    if importlib.util.find_spec("kvxfer") is None:
        pytest.skip("no kvxfer here")
    return sglang_pair.context(tmp_path_factory.mktemp("entry_points"))


@pytest.fixture
def cluster(start: Any, tmp_path: Path) -> Iterator[sglang_pair.Cluster]:
    made = sglang_pair.Cluster(start, tmp_path)
    yield made
    made.close()
