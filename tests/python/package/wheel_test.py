"""The package where users put it: beside other libraries, on other hosts, with nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import kvxfer
import pytest
from pairs import run, run_well

pytestmark = pytest.mark.wheel

PACKAGE = Path(kvxfer.__file__).parent
MODULE = next(PACKAGE.glob("_kvxfer.*.so"))
PLUGINS = sorted(PACKAGE.glob("lib/kvxfer/libkvxfer_backend_*.so"))
PROGRAM = PACKAGE / "_bin" / "kvxfer"
OBJECTS = [MODULE, PROGRAM, *PLUGINS]

USE = """
    import kvxfer
    source, target = bytearray(b"kvxfer" * 100), bytearray(600)
    with kvxfer.Agent("left") as left, kvxfer.Agent("right") as right:
        ours, theirs = left.register_memory(source), right.register_memory(target)
        left.add_peer(right.metadata())
        left.write("right", [(ours.address, 600)], [(theirs.address, 600)]).wait(10)
    assert target == source
"""


def tool(*command: object) -> str:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True
    ).stdout


def test_plugins_and_program_are_there() -> None:
    names = {path.name for path in PLUGINS}
    assert names == {"libkvxfer_backend_ucx.so", "libkvxfer_backend_libfabric.so"}
    table = tool(PROGRAM, "backends")
    for name in names:
        assert str(PACKAGE / "lib" / "kvxfer" / name) in table


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_the_c_library_may_be_that_of_rhel_9(path: Path) -> None:
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", tool("objdump", "-T", path))
    assert versions and max((int(major), int(minor)) for major, minor in versions) <= (2, 34)


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: path.name)
def test_only_the_c_library_is_needed(path: Path) -> None:
    needed = set(re.findall(r"NEEDED\s+(\S+)", tool("objdump", "-p", path)))
    needed -= {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
    own = {"libkvxfer_backend_ucx.so": "libuc", "libkvxfer_backend_libfabric.so": "libfabric"}
    assert all(library.startswith(own.get(path.name, "nothing")) for library in needed), needed


@pytest.mark.parametrize("path", [MODULE, *PLUGINS], ids=lambda path: path.name)
def test_one_symbol_is_shown(path: Path) -> None:
    shown = tool("nm", "-D", "--defined-only", path).split("\n")
    names = [line.split()[-1].split("@")[0] for line in shown if line]
    assert names == ["PyInit__kvxfer" if path == MODULE else "kvxfer_backend_plugin"]


@pytest.mark.parametrize("path", [MODULE, *PLUGINS], ids=lambda path: path.name)
def test_no_symbol_of_another_copy_is_taken(path: Path) -> None:
    asked = tool("nm", "-D", "--undefined-only", "--demangle", path)
    foreign = [line for line in asked.split("\n") if re.search(r"absl|protobuf|fmt::|std::| EVP_", line)]
    assert foreign == []


def test_other_copies_in_the_process_are_not_met(tmp_path: Path) -> None:
    """With Abseil, Protobuf and fmt of the distribution in the global scope, nothing of ours is bound
    to them: as the loader itself tells."""
    libraries = ["libprotobuf.so.32", "libfmt.so.9", "libabsl_strings.so.20220623", "libcrypto.so.3",
                 "libstdc++.so.6"]
    load = "".join(
        f"    ctypes.CDLL({name!r}, mode=ctypes.RTLD_GLOBAL)\n" for name in libraries
    )
    environment = dict(os.environ, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "bindings"))
    code = "    import ctypes\n" + load + USE


    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    text = "".join(path.read_text(errors="replace") for path in tmp_path.glob("bindings.*"))
    ours = [line for line in text.split("\n") if f"binding file {MODULE}" in line]
    assert len(ours) > 50, "the loader told nothing"
    foreign = [line for line in ours if re.search(r" to \S*lib(absl|protobuf|fmt|crypto|stdc)", line)]
    assert foreign == []


def test_import_loads_no_fabric_library() -> None:
    out = run_well(
        USE
        + """
    maps = open("/proc/self/maps").read()
    print([word for word in ("libucp", "libfabric", "libcuda", "libibverbs") if word in maps])
    import sys
    print([name for name in ("numpy", "torch", "asyncio") if name in sys.modules])
"""
    )
    assert out.split("\n")[:2] == ["[]", "[]"]


def test_import_takes_no_time() -> None:
    code = """
    import time
    began = time.perf_counter()
    import kvxfer
    kvxfer.Agent
    print(time.perf_counter() - began)
"""
    # The quickest of a few, for the machine may be busy.
    assert min(float(run_well(code)) for _ in range(5)) < 0.1


@pytest.mark.torch
@pytest.mark.parametrize("order", ["before", "after", "between"])
def test_beside_torch_grpc_and_nixl(order: str) -> None:
    """Real NIXL is only imported here: its agents end a process badly by themselves."""
    others = ["import torch", "import grpc", "import nixl_cu13._bindings"]
    ours = "import kvxfer; kvxfer.Agent"
    lines = {
        "before": [ours, *others],
        "after": [*others, ours],
        "between": [others[0], ours, *others[1:]],
    }[order]
    environment = "    import os; os.environ.pop('LD_PRELOAD', None)\n"
    uses = "    assert torch.ones(3).sum() == 3 and grpc.insecure_channel('127.0.0.1:1')\n"
    run_well(environment + "".join(f"    {line}\n" for line in lines) + USE + uses, timeout=120)


def test_what_it_is_made_of_is_named() -> None:
    ran = run("import importlib.metadata as m; print(m.version('kvxfer'))")
    assert ran.returncode == 0 and ran.stdout.strip() == kvxfer.__version__
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_kvxfer.pyi").exists()


@pytest.fixture
def empty_python() -> str:
    python = os.environ.get("KVXFER_TEST_EMPTY_PYTHON")
    if python is None:
        pytest.skip("no environment of its own: tests/python/python-tests build")
    return python


def test_an_empty_environment_suffices(empty_python: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def ran(*command: str) -> str:
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout



    ran(empty_python, "-c", textwrap.dedent(USE))
    assert kvxfer.__version__ in ran(empty_python, "-m", "kvxfer", "--version")
    script = str(Path(empty_python).parent / "kvxfer")
    assert "usable" in ran(script, "backends")
    site = ran(empty_python, "-m", "kvxfer.compat.nixl", "--path").strip()
    assert Path(site, "nixl", "__init__.py").exists()
    listed = ran(empty_python, "-c", "import importlib.metadata as m; "
                 "print(sorted(d.name for d in m.distributions()))")
    assert set(eval(listed)) <= {"kvxfer", "pip", "setuptools"}  # noqa: S307


def test_the_wheel_is_named_for_its_platform() -> None:
    wheels = os.environ.get("KVXFER_TEST_WHEELS")
    if wheels is None:
        pytest.skip("no wheels: tests/python/python-tests build")
    names = [path.name for path in Path(wheels).glob("*.whl")]
    assert len(names) == 1 and "manylinux_2_34_x86_64" in names[0], names
