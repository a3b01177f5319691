"""What the figures were measured on and with."""

import os
import platform
import re
import subprocess

import environment


def _read(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _chosen(path):
    """The word in brackets, as the kernel marks a choice."""
    found = re.search(r"\[(\w+)\]", _read(path))
    return found.group(1) if found else "unknown"


def _output(command, cwd=None):
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def describe():
    model = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", _read("/proc/cpuinfo"),
                                  re.MULTILINE)),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else 0,
        "kernel": platform.release(),
        "huge_pages_shared": _chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    }


def versions(root):
    """Of kvxfer (commit, with + when files differ from it) and of everything beside it."""
    commit = _output(["git", "rev-parse", "--short", "HEAD"], root)
    changed = _output(["git", "status", "--porcelain", "--untracked-files=no"], root)
    return {
        "kvxfer": (commit or "unknown") + ("+" if changed else ""),
        "compiler": _output(["c++", "--version"]).partition("\n")[0],
        "libucx-dev": _output(["pkg-config", "--modversion", "ucx"]) or "not installed",
        **environment.PEERS,
    }


def load_average():
    return os.getloadavg()[0]
