"""Where everything is: the drivers' build, the peers' virtual environment, the logs."""

import dataclasses
import glob
import os
import shutil
import subprocess
import sys

# What is compared, pinned. Nothing of it comes with what it can do without here: NIXL asks for
# torch, Mooncake for an HTTP client.
PEERS = {
    "nixl-cu12": "1.5.1",
    "mooncake-transfer-engine-non-cuda": "0.3.13.post1",
    "libucx-cu12": "1.22.0",
}
# What shows that a peer that is installed also runs here.
_IMPORTS = {"nixl-cu12": "nixl_cu12._api", "mooncake-transfer-engine-non-cuda": "mooncake.engine"}
_TOOLS = ("numpy==2.4.6", "matplotlib==3.11.2")


class SetupError(Exception):
    """Nothing can be measured; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Places:
    here: str  # benchmarks/compare
    programs: str  # the drivers
    venv: str
    logs: str

    @property
    def python(self):
        return os.path.join(self.venv, "bin", "python")

    def environment(self, contestant):
        environment = dict(os.environ)
        environment.update(contestant.environment)
        if contestant.package == "libucx-cu12":
            found = glob.glob(os.path.join(self.venv, "lib", "python3*", "site-packages",
                                           "libucx", "lib"))
            if not found:
                raise SetupError(f"libucx-cu12 has no libraries in {self.venv}; remove that folder, "
                                 "and it is made anew")
            library = found[0]
            environment["LD_LIBRARY_PATH"] = library
            environment["UCX_MODULE_DIR"] = os.path.join(library, "ucx")
        return environment

    @property
    def ucx_plugin(self):
        """Where the driver of kvxfer looks for the backend ucx."""
        return os.path.join(os.path.dirname(self.programs), "lib", "kvxfer",
                            "libkvxfer_backend_ucx.so")


def _last_line(text, default):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # pip's own news about itself is no reason.
    lines = [line for line in lines if not line.startswith("[notice]")]
    return lines[-1] if lines else default


def _pip(venv, arguments):
    """Empty when it went well, else why not."""
    command = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--quiet",
               "--disable-pip-version-check", "--retries", "2", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return _last_line(done.stderr, f"pip ended with exit status {done.returncode}")


def _try(venv, code):
    """Runs a line of Python there: empty when it went well, else its last words."""
    done = subprocess.run([os.path.join(venv, "bin", "python"), "-c", code], capture_output=True,
                          text=True, check=False)
    return "" if done.returncode == 0 else _last_line(done.stderr, f"status {done.returncode}")


def _installed(venv, requirement):
    name, _, version = requirement.partition("==")
    return not _try(venv, f"import importlib.metadata as m; assert m.version({name!r}) == "
                          f"{version!r}")


def _make_venv(venv):
    """Empty, or why there is none."""
    if os.path.exists(os.path.join(venv, "bin", "python")) and not _try(venv, "import pip"):
        return ""
    shutil.rmtree(venv, ignore_errors=True)  # left half made by a try without python3-venv
    done = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True,
                          check=False)
    if done.returncode == 0:
        return ""
    return "no virtual environment could be made (on Debian: apt install python3-venv)"


def set_up_peers(venv, say):
    """Installs what is not there yet. Returns {package: why it is missing}; "" stands for the tools
    (numpy, matplotlib), without which no peer in Python runs and nothing is plotted."""
    why = _make_venv(venv)
    if why:
        return dict.fromkeys(["", *PEERS], why)
    missing = {}
    wanted = {"": list(_TOOLS), **{name: ["--no-deps", f"{name}=={version}"]
                                   for name, version in PEERS.items()}}
    for name, arguments in wanted.items():
        requirements = [argument for argument in arguments if "==" in argument]
        why = ""
        if not all(_installed(venv, requirement) for requirement in requirements):
            say(f"installing {' '.join(requirements)} into {venv}")
            why = _pip(venv, arguments)
        if not why and name in _IMPORTS:
            why = _try(venv, f"import {_IMPORTS[name]}")
        if why:
            missing[name] = why
    return missing


def install_packages(root, flags, say):
    """What the drivers are built with, where it is not there yet. The script says what it installs."""
    command = [os.path.join(root, "scripts", "setup"), *flags]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        # Another distribution may have all of it under other names: the build says what is missing.
        say("scripts/setup failed; goes on with what is installed")


def _tail(path, lines=30):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-lines:]).rstrip()


def build_drivers(root, log_path):
    """Builds the drivers as they are measured; returns their folder."""
    commands = (["cmake", "--preset", "release"],
                ["cmake", "--build", "--preset", "release", "--target", "compare_drivers",
                 "--parallel", str(os.cpu_count())])
    with open(log_path, "wb") as log:
        for command in commands:
            try:
                done = subprocess.run(command, cwd=root, stdout=log, stderr=log, check=False)
            except OSError as error:
                raise SetupError(f"{command[0]}: {error.strerror}; scripts/setup installs what the "
                                 "build needs") from error
            if done.returncode != 0:
                raise SetupError(f"{_tail(log_path)}\n'{' '.join(command)}' failed; its log: "
                                 f"{log_path}")
    return os.path.join(root, "build", "release", "bin")


def _no_ucx(contestant, places):
    """Empty where it does without UCX, or UCX was there when the drivers were built."""
    needed = {"ucx": os.path.join(places.programs, "compare_ucx")}.get(contestant.program)
    if contestant.mode == "ucx":
        needed = places.ucx_plugin
    if needed is None or os.path.exists(needed):
        return ""
    return (f"there is no {needed}: it is built where UCX's headers are, 1.12 or newer (on Debian: "
            "apt install libucx-dev)")


def drop_missing(groups, places, missing):
    """The groups without contestants that cannot run, and [{name, reason}] of those."""
    absent = {}
    for group in groups:
        for one in group.contestants:
            reason = missing.get(one.package, "") if one.package else ""
            if one.in_python:
                reason = reason or missing.get("", "")
            reason = _no_ucx(one, places) or reason
            if reason:
                absent[one.name] = reason
    kept = tuple(dataclasses.replace(group, contestants=tuple(
        one for one in group.contestants if one.name not in absent)) for group in groups)
    return kept, [{"name": name, "reason": reason} for name, reason in absent.items()]
