"""How many more files this process may open: each connected peer takes some."""

from __future__ import annotations

import os
import resource

PER_PEER = 8
"""Control, data streams, files of shared memory, with some to spare."""
RESERVE = 32
"""For everything else that the engine opens."""
HINT = "raise this engine's limit of open files (ulimit -n, or LimitNOFILE of its service)"

_AMPLE = 1 << 20


def free_descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit > _AMPLE:
        return _AMPLE
    try:
        return limit - len(os.listdir("/proc/self/fd"))
    except OSError:  # there is none left to look with
        return 0
