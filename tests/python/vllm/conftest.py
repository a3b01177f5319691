"""The pair of engines that serves every test; they start together, and the last test kills one."""

import importlib.metadata
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from engine_pair import Pair
from tiny_model import write_tiny_model

_MODEL_SEED = 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Shows the engines' logs with what failed."""
    report = yield
    pair = getattr(item, "funcargs", {}).get("pair")
    if report.failed and pair is not None:
        for engine in (pair.prefill, pair.decode):
            report.sections.append((f"log of engine {engine.name}", engine.log_tail()))
    return report


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM is not installed: tests/python/environment/python-env has it")
    folder = tmp_path_factory.mktemp("vllm")
    print(f"seed of the model: {_MODEL_SEED}")
    write_tiny_model(folder / "model", _MODEL_SEED)
    pair = Pair.start(folder / "model", folder)
    try:
        for engine in (pair.prefill, pair.decode):
            print(f"{engine.name}: {engine.wait_until_up()}")
        yield pair
    finally:
        pair.close()
