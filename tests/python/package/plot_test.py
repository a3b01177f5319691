"""``kvxfer plot``: figures that hold what the documents say, and errors that name what is wrong."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
# pylint: disable=wrong-import-position
from matplotlib.collections import PolyCollection  # noqa: E402

from kvxfer import _cli  # noqa: E402
from kvxfer._errors import InvalidArgument  # noqa: E402
from kvxfer.plot import figures, main, style  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
MEASURED = ROOT / "benchmarks" / "results" / "compare.json"


def result(block_bytes: int, gb_per_s: float, **more: Any) -> dict[str, Any]:
    cdf = [[100.0, 0.25], [120.0, 0.5], [150.0, 0.9], [180.0, 0.99], [900.0, 1]]
    return {
        "workload": "raw", "backend": "tcp", "op": "write", "memory": "mapped", "peers": 1,
        "threads": 1, "bidirectional": False, "block_bytes": block_bytes, "gb_per_s": gb_per_s,
        "p50_us": 120.0, "p90_us": 150.0, "p99_us": 180.0, "latency_cdf": cdf, **more,
    }


def transfer(peer: int, thread: int, *times: float) -> dict[str, Any]:
    names = ("due_us", "posted_us", "first_slice_us", "notified_us", "ended_us")
    return {"peer": peer, "thread": thread, "bytes": 1 << 20, **dict(zip(names, times))}


TIMELINE = [
    transfer(0, 0, 1000, 1001, 1010, 1200, 1250),
    transfer(0, 1, 1002, 1003, 1260, 1500, 1510),
    transfer(0, 0, 1255, 1256, 1520, 1700, 1730),
]


def bench(*results: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"host": "h", "cpu": "A CPU", "cpus": 8, "memory_bytes": 1, "kernel": "6.1.0-x"},
        "version": "1.2.3", "date": "2026-01-31 12:00 UTC",
        "results": list(results) or [result(4096, 1.5), result(65536, 4.0), result(4 << 20, 5.5)],
    }


def compare() -> dict[str, Any]:
    def row(name: str, kind: str, size: int, rate: float, blocks: int = 64) -> dict[str, Any]:
        return {"group": "tcp" if blocks > 1 else "ping", "contestant": name, "kind": kind,
                "block_bytes": size, "blocks": blocks, "gb_per_s_without_preparing": rate,
                "p50_us": 40.0 / rate, "p99_us": 90.0 / rate}

    rows = [row(name, kind, size, rate * (1 + size / 65536))
            for name, kind, rate in (("kvxfer tcp", "kvxfer", 4.0), ("raw loop", "raw", 4.4),
                                     ("NIXL", "peer", 1.0), ("raw, plain", "reference", 3.0))
            for size in (4096, 16384, 65536)]
    rows += [row("kvxfer tcp", "kvxfer", 4096, 2.0, 1), row("blocking", "raw", 4096, 4.0, 1)]
    return {"schema": 1, "complete": True, "date": "2026-01-31 12:00 UTC",
            "machine": {"cpu": "A CPU", "cpus": 2, "virtual": True, "kernel": "6.1.0"},
            "versions": {"kvxfer": "abc1234"}, "titles": {"tcp": "TCP over loopback"},
            "results": rows}


def save(folder: Path, document: Any, name: str = "doc.json") -> str:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def lines(axis: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axis.get_lines() if not str(line.get_label()).startswith("_")
    }


def texts(figure: Any) -> list[str]:
    """All that is written in a figure, a line each."""
    found = list(figure.texts)
    for axis in figure.axes:
        found += axis.texts + axis.get_xticklabels() + axis.get_yticklabels()
        found += [axis.title, axis._left_title]  # pylint: disable=protected-access
    return [text.get_text().replace("\n", " ") for text in found]


class TestBandwidth:
    def test_has_every_contestants_points_and_the_raw_dashed(self, tmp_path: Path) -> None:
        document = compare()
        figure = figures([save(tmp_path, document)], ["bandwidth"])["bandwidth"]
        (axis,) = figure.axes
        drawn = lines(axis)
        assert list(drawn) == ["kvxfer tcp", "raw loop", "NIXL", "raw, plain"]
        for name, (sizes, rates) in drawn.items():
            rows = [r for r in document["results"] if r["contestant"] == name and r["blocks"] > 1]
            assert sizes == [row["block_bytes"] for row in rows]
            assert rates == [row["gb_per_s_without_preparing"] for row in rows]
        dashed = {line.get_label(): line.is_dashed() for line in axis.get_lines()}
        assert dashed == {"kvxfer tcp": False, "raw loop": True, "NIXL": False, "raw, plain": True}

    def test_says_machine_date_and_names_at_the_lines(self, tmp_path: Path) -> None:
        figure = figures([save(tmp_path, compare())], ["bandwidth"])["bandwidth"]
        written = texts(figure)
        for text in ("Bandwidth by block size: TCP over loopback", "raw loop (raw reference)", "kvxfer tcp",
                     "A CPU, 2 CPUs (virtual), Linux 6.1.0 · kvxfer abc1234, 2026-01-31 12:00 UTC",
                     "4 KiB", "16 KiB", "64 KiB"):
            assert text in written

    def test_sweeps_that_differ_in_more_than_size_are_lines(self, tmp_path: Path) -> None:
        tcp = save(tmp_path, bench(), "a.json")
        shm = save(tmp_path, bench(result(16384, 9.0, backend="shm"),
                                   result(4096, 7.0, backend="shm")), "b.json")
        figure = figures([tcp, shm], ["bandwidth"])["bandwidth"]
        drawn = lines(figure.axes[0])
        assert drawn["tcp"] == ([4096, 65536, 4 << 20], [1.5, 4.0, 5.5])
        assert drawn["shm"] == ([4096, 16384], [7.0, 9.0])
        assert "Bandwidth by block size: write, mapped memory" in texts(figure)

    def test_the_same_run_twice_is_told_apart_by_file(self, tmp_path: Path) -> None:
        paths = [save(tmp_path, bench(), f"{name}.json") for name in ("before", "after")]
        assert list(lines(figures(paths)["bandwidth"].axes[0])) == ["before", "after"]

    def test_one_size_is_no_sweep_unless_asked_for(self, tmp_path: Path) -> None:
        path = save(tmp_path, bench(result(4096, 1.5)))
        assert "bandwidth" not in figures([path])
        assert "bandwidth" in figures([path], ["bandwidth"])


def test_latency_has_p50_and_p99_of_round_trips_best_first(tmp_path: Path) -> None:
    figure = figures([save(tmp_path, compare())], ["latency"])["latency"]
    assert list(lines(figure.axes[0]).items()) == [
        ("blocking", ([10.0, 22.5], [0, 0])), ("kvxfer tcp", ([20.0, 45.0], [1, 1])),
    ]
    assert "20.0 µs – 45.0 µs" in texts(figure)


class TestCdf:
    def test_has_the_distribution_and_marks_percentiles(self, tmp_path: Path) -> None:
        document = bench(result(4096, 1.5))
        figure = figures([save(tmp_path, document)], ["cdf"])["cdf"]
        curve, marks = figure.axes[0].get_lines()
        points = document["results"][0]["latency_cdf"]
        assert list(curve.get_xdata()) == [100.0] + [us for us, _ in points]
        assert list(curve.get_ydata()) == [0.0] + [part for _, part in points]
        assert list(marks.get_xdata()) == [120.0, 150.0, 180.0]
        assert list(marks.get_ydata()) == [0.5, 0.9, 0.99]
        assert {"p50 120 µs", "p90 150 µs", "p99 180 µs"} <= set(texts(figure))

    def test_several_have_a_key_with_their_percentiles(self, tmp_path: Path) -> None:
        document = bench(result(4096, 1.5), result(65536, 4.0, p99_us=2500.0))
        figure = figures([save(tmp_path, document)], ["cdf"])["cdf"]
        assert list(lines(figure.axes[0])) == ["4 KiB blocks", "64 KiB blocks"]
        assert {"4 KiB blocks", "64 KiB blocks", "p99", "2.50 ms"} <= set(texts(figure))

    def test_more_than_one_can_tell_apart_are_refused(self, tmp_path: Path) -> None:
        path = save(tmp_path, bench(*(result(4096, 1.0, threads=n) for n in range(1, 19))))
        with pytest.raises(InvalidArgument, match="results are 18; expected 16 at most"):
            figures([path], ["cdf"])


class TestTimeline:
    def test_has_a_lane_for_each_thread_with_every_stage(self, tmp_path: Path) -> None:
        path = save(tmp_path, bench(result(4096, 1.5, threads=2, timeline=TIMELINE)))
        figure = figures([path], ["timeline"])["timeline"]
        (axis,) = figure.axes
        # Times since the first was posted.
        assert lines(axis) == {"thread 0": ([199, 699], [0, 0]), "thread 1": ([499], [1])}
        spans = [
            sorted((round(p.get_extents().x0), round(p.get_extents().x1)) for p in c.get_paths())
            for c in axis.collections if isinstance(c, PolyCollection)
        ]
        queued, wire, answer = spans[:3]
        assert queued == [(0, 9), (255, 519)]
        assert wire == [(9, 199), (519, 699)]
        assert answer == [(199, 249), (699, 729)]
        assert spans[3:] == [[(2, 259)], [(259, 499)], [(499, 509)]]

    def test_of_an_open_loop_it_says_when_each_was_due(self, tmp_path: Path) -> None:
        late = result(4096, 1.5, target_requests_per_s=50.0, timeline=TIMELINE)
        figure = figures([save(tmp_path, bench(late))], ["timeline"])["timeline"]
        due = [list(line.get_xdata()) for line in figure.axes[0].get_lines()
               if line.get_marker() == "^"]
        assert due == [[0, 255], [2]]

    def test_peers_are_lanes_and_a_target_without_a_clock_has_no_mark(
        self, tmp_path: Path
    ) -> None:
        timeline = [transfer(peer, 0, 1, 2, 3, 4, 5) for peer in (0, 3)]
        del timeline[1]["notified_us"]
        path = save(tmp_path, bench(result(4096, 1.5, peers=4, scheme="manytoone",
                                           timeline=timeline)))
        figure = figures([path], ["timeline"])["timeline"]
        assert lines(figure.axes[0]) == {"peer 0": ([2], [0]), "peer 3": ([], [])}

    def test_is_drawn_where_there_is_one(self, tmp_path: Path) -> None:
        path = save(tmp_path, bench(result(4096, 1.5, timeline=TIMELINE), result(8192, 1.5)))
        assert list(figures([path])) == ["bandwidth", "cdf", "timeline"]
        assert list(figures([save(tmp_path, bench())])) == ["bandwidth", "cdf"]
        assert list(figures([save(tmp_path, compare())])) == ["bandwidth", "latency"]


def broken(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """With another value at `place`, as results.0.op; without one where it is None."""
    document = copy.deepcopy(document)
    *way, last = place.split(".")
    node: Any = document
    for step in way:
        node = node[int(step) if step.isdigit() else step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return document


CDF = "[microseconds, part of the requests]"
TIMED = bench(result(4096, 1.5, timeline=TIMELINE))


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", ["is no JSON", "kvxfer bench --json"]),
        ([], ["is []", "benchmarks/compare"]),
        ({"a": 1}, ["machine is missing", "kvxfer bench --json"]),
        ({"machine": {}}, ["results is missing"]),
        ({"mode": "rate", "backend": "shm", "results": []}, ["mode is", "--prefill-tp"]),
        (broken(bench(), "date", None), ["date is missing", "expected text"]),
        (broken(bench(), "version", 3), ["version is 3", "expected text"]),
        (broken(bench(), "machine", []), ["machine is []", "an object"]),
        (broken(bench(), "machine.cpus", "8"), ["machine.cpus is", "a whole number"]),
        (broken(bench(), "results", []), ["results is empty", "list of objects"]),
        (broken(bench(), "results", [1]), ["results[0] is 1", "an object"]),
        (broken(bench(), "results.1.latency_cdf", None), ["results[1].latency_cdf is mis", CDF]),
        (broken(bench(), "results.0.latency_cdf", []), ["results[0].latency_cdf is no", CDF]),
        (broken(bench(), "results.0.latency_cdf", [[1, 0.5]]), ["is no distribution", CDF]),
        (broken(bench(), "results.0.latency_cdf", [[2, 0.5], [1, 1]]), ["is no distribution"]),
        (broken(bench(), "results.0.latency_cdf", [[1, 0.9], [2, 0.5], [3, 1]]), ["is no dist"]),
        (broken(bench(), "results.0.latency_cdf", [["1", 1]]), ['latency_cdf has ["1", 1]', CDF]),
        (broken(bench(), "results.0.gb_per_s", "x"), ["results[0].gb_per_s is", "a number"]),
        (broken(bench(), "results.0.gb_per_s", float("nan")), ["gb_per_s is nan", "a number"]),
        (broken(bench(), "results.0.gb_per_s", True), ["gb_per_s is true", "a number"]),
        (broken(bench(), "results.0.block_bytes", 0), ["block_bytes is 0", "from 1 on"]),
        (broken(bench(), "results.0.threads", -1), ["threads is -1", "from 0 on"]),
        (broken(bench(), "results.0.bidirectional", 1), ["bidirectional is 1", "true or false"]),
        (broken(TIMED, "results.0.timeline", {}), ["results[0].timeline is {}", "list"]),
        (broken(TIMED, "results.0.timeline.1.posted_us", None),
         ["results[0].timeline[1].posted_us is missing", "a number"]),
        (broken(compare(), "schema", 2), ["schema is 2", "expected 1"]),
        (broken(compare(), "complete", False), ["complete is false", "whole run"]),
        (broken(compare(), "results.3.kind", "friend"), ["results[3].kind is", "kvxfer, raw"]),
        (broken(compare(), "results.0.p50_us", None), ["results[0].p50_us is missing"]),
    ],
)
def test_a_wrong_document_is_named_with_field_and_what_was_expected(
    document: Any, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, document, "wrong.json")
    assert main([path, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "out").exists()
    assert err.startswith(f"kvxfer: {path}: ") and err.count("\n") == 1
    for part in (*said, "expected"):
        assert part in err


@pytest.mark.parametrize("kind", ["latency", "timeline"])
def test_a_kind_without_data_is_named_with_what_has_it(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path, bench())
    assert main([path, "--kind", kind]) == 2
    err = capsys.readouterr().err
    assert f"{path}: nothing to draw as {kind}; expected " in err and err.count("\n") == 1


class TestFiles:
    def test_a_folder_gets_a_file_for_each_kind(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "new" / "folder"
        assert main([save(tmp_path, bench()), "--out", str(out)]) == 0
        assert capsys.readouterr().out.split() == [str(out / "bandwidth.png"), str(out / "cdf.png")]
        for file in out.iterdir():
            assert file.read_bytes().startswith(b"\x89PNG")
        assert len(list(out.iterdir())) == 2

    @pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"),
                                                   ("pdf", b"%PDF")])
    def test_one_file_is_of_its_kind_and_the_same_every_time(
        self, suffix: str, start: bytes, tmp_path: Path
    ) -> None:
        path = save(tmp_path, bench())
        made = []
        for name in ("a", "b"):
            out = tmp_path / f"{name}.{suffix}"
            assert main([path, "--kind", "cdf", "--out", str(out)]) == 0
            made.append(out.read_bytes())
        assert made[0].startswith(start) and made[0] == made[1]

    def test_a_pdf_has_a_page_for_each(self, tmp_path: Path) -> None:
        out = tmp_path / "all.pdf"
        assert main([save(tmp_path, bench()), "--out", str(out)]) == 0
        assert out.read_bytes().count(b"/Type /Page ") == 2

    @pytest.mark.parametrize(("name", "said"), [
        ("one.png", "is one file, and there are 2 figures (bandwidth, cdf)"),
        ("some.jpg", "ends in .jpg; expected .png, .svg, .pdf"),
    ])
    def test_a_file_that_cannot_hold_them_is_refused(
        self, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([save(tmp_path, bench()), "--out", str(tmp_path / name)]) == 2
        assert f"{name}: {said}" in capsys.readouterr().err
        assert not (tmp_path / name).exists()

    def test_what_cannot_be_written_is_status_1(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = save(tmp_path, bench())
        assert main([path, "--kind", "cdf", "--out", f"{path}/cdf.png"]) == 1
        assert capsys.readouterr().err.count("\n") == 1

    def test_a_document_that_is_not_there_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = str(tmp_path / "none.json")
        assert main([path]) == 2
        assert capsys.readouterr().err == f"kvxfer: {path}: No such file or directory\n"


@pytest.mark.parametrize("arguments", [[], ["a.json", "--kind", "pie"], ["a.json", "--colour"]])
def test_wrong_arguments_are_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    err = capsys.readouterr().err
    assert left.value.code == 2
    assert err.startswith("kvxfer: plot: ") and err.count("\n") == 1


def test_without_matplotlib_the_remedy_is_named(tmp_path: Path) -> None:
    code = ("import sys; sys.modules['matplotlib'] = None; from kvxfer.plot import main; "
            f"sys.exit(main([{save(tmp_path, bench())!r}]))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "pip install 'kvxfer[plot]'" in done.stderr


def test_the_benchmarks_own_plots_are_these(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "compare" / "plots.py"
    done = subprocess.run([sys.executable, script, MEASURED, tmp_path], capture_output=True,
                          text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == ["bandwidth.png", "latency.png"] == sorted(os.listdir(tmp_path))


def test_what_the_program_writes_is_drawn(tmp_path: Path) -> None:
    try:
        program = _cli.find_program()
    except _cli.MissingProgram as missing:
        pytest.skip(str(missing))
    done = subprocess.run(
        [program, "bench", "--backend", "shm", "--total", "1M", "-s", "4K:16K", "-n", "20",
         "--threads", "2", "--timeline", "10", "--json"],
        capture_output=True, text=True, check=True, timeout=60,
    )
    document = json.loads(done.stdout)
    drawn = figures([save(tmp_path, document)])
    assert list(drawn) == ["bandwidth", "cdf", "timeline"]
    (rates,) = [list(line.get_ydata()) for line in drawn["bandwidth"].axes[0].get_lines()]
    assert rates == [row["gb_per_s"] for row in document["results"]]
    notified = sum(len(lanes[0]) for axis in drawn["timeline"].axes for lanes in lines(axis).values())
    assert notified == 30


def test_labels_never_lie_over_each_other() -> None:
    drawn = random.Random(7)
    for _ in range(300):
        count = drawn.randint(1, 12)
        heights = [drawn.choice((0.04, 0.08)) for _ in range(count)]
        wanted = sorted(drawn.choice((0.0, 0.3, 0.31, drawn.random(), 1.0)) for _ in range(count))
        places = style.spread(wanted, heights)
        for i in range(1, count):
            assert places[i] - places[i - 1] >= (heights[i] + heights[i - 1]) / 2 - 1e-9
        assert places[0] >= heights[0] / 2 - 1e-9
        assert places[-1] <= 1 - heights[-1] / 2 + 1e-9
    assert style.spread([0.2, 0.5, 0.9], [0.05] * 3) == [0.2, 0.5, 0.9]


def test_units_are_written_as_people_read_them() -> None:
    assert [style.bytes_text(n) for n in (64, 4096, 98304, 4 << 20, 3 << 30)] == [
        "64 B", "4 KiB", "96 KiB", "4 MiB", "3 GiB"]
    assert [style.time_text(us) for us in (0.18, 12.34, 999.9, 1230, 45_600, 2.5e6)] == [
        "0.18 µs", "12.3 µs", "1.00 ms", "1.23 ms", "45.6 ms", "2.50 s"]
    assert [style.tick_text(us) for us in (0.1, 1, 500, 2000, 1e6)] == [
        "100 ns", "1 µs", "500 µs", "2 ms", "1 s"]
