"""Counts of a run as the project's scripts add them up, on the last line: "12 passed, 0 failed". What
was skipped is named above it; with CI=true it failed."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "torch: needs torch, which not every environment has",
        "wheel: is about the package as it is installed",
    ):
        config.addinivalue_line("markers", marker)


class _Counts:
    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.skipped: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            where = report.longrepr
            reason = where[2] if isinstance(where, tuple) else str(where)
            self.skipped.append((report.nodeid, reason))
        elif report.failed:
            self.failed += 1
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed += 1
        elif report.skipped:
            where = report.longrepr
            self.skipped.append((report.nodeid, where[2] if isinstance(where, tuple) else ""))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        for name, reason in self.skipped:
            print(f"skipped: {name}: {reason}")
        failed, skipped = self.failed, len(self.skipped)
        if os.environ.get("CI") == "true":
            failed, skipped = failed + skipped, 0
        print(f"{self.passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Counts(), "kvxfer-counts")
