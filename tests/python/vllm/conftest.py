"""Pairs of engines for a file of tests, and their logs where one fails."""

import importlib.metadata
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from engine_pair import Pair, StartPair


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Shows the engines' logs with what failed."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            for engine in value.engines if isinstance(value, Pair | StartPair) else ():
                report.sections.append((f"log of engine {engine.name}", engine.log_tail()))
    return report


@pytest.fixture(scope="module")
def start_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartPair]:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vLLM is not installed: tests/python/environment/python-env has it")
    start = StartPair(lambda: tmp_path_factory.mktemp("vllm"))
    try:
        yield start
    finally:
        start.close()
