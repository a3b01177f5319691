"""The transports of UCX_TLS, and the backends of kvxfer that do the same.

Pure: what this host has makes no difference here."""

from dataclasses import dataclass, field

ALL = ("loopback", "cuda_ipc", "shm", "verbs", "libfabric", "tcp")

_RC = ("rc", "rc_v", "rc_x", "rc_verbs", "rc_mlx5")
_UNRELIABLE = ("ud", "ud_v", "ud_x", "ud_verbs", "ud_mlx5", "dc", "dc_x", "dc_mlx5")
_SHARED = ("posix", "sysv", "xpmem", "knem", "cma")
_STAGING = ("cuda_copy", "gdr_copy")
# What connections are made with, and not what they carry data with.
_CONNECTING = ("rdmacm", "sockcm", "tcp_sockcm")

# What a list may name to have a backend. kvxfer's verbs has RC queue pairs alone, and its shm maps
# memory or copies from process to process, whichever is faster.
_ALLOWED: dict[str, tuple[str, ...]] = {
    "loopback": ("self",),
    "cuda_ipc": ("cuda_ipc", "cuda"),
    "shm": ("sm", "shm", "mm", *_SHARED),
    "verbs": ("ib", *_RC, *_UNRELIABLE),
    "libfabric": ("ib", "srd"),
    "tcp": ("tcp",),
}
# What a list that begins with ^ has to name to be without a backend.
_EXCLUDED: dict[str, tuple[str, ...]] = _ALLOWED | {
    "shm": ("sm", "shm"),
    "verbs": ("ib", "rc"),
}
_KNOWN = {"all", *_STAGING, *_CONNECTING, *sum(_ALLOWED.values(), ())}

_STAGED = "GPU memory that no backend reaches is staged; KVXFER_STAGING_BYTES=0 refuses it"
_ITSELF = "kvxfer's shm chooses its copies itself; KVXFER_BACKENDS=^shm leaves it out"


@dataclass
class Transports:
    left_out: set[str] = field(default_factory=set)
    """Backends that the setting is without."""
    problems: list[str] = field(default_factory=list)
    """What it asks for and kvxfer does not do, with what to set instead."""


def _tokens(value: str) -> list[str]:
    """Without UCX's marks: "\\rc" is only that one, "ud:aux" only makes connections."""
    named = [token.strip().lstrip("\\") for token in value.split(",")]
    return [token for token in named if token and not token.endswith(":aux")]


def _unknown(tokens: list[str]) -> list[str]:
    unknown = [token for token in tokens if token not in _KNOWN]
    if not unknown:
        return []
    return [f"kvxfer has no {', '.join(unknown)}; KVXFER_BACKENDS chooses of {', '.join(ALL)}"]


def _all_but(tokens: list[str]) -> Transports:
    made = Transports(problems=_unknown(tokens))
    for backend, names in _EXCLUDED.items():
        if set(names) & set(tokens):
            made.left_out.add(backend)
    for token in tokens:
        if token in _STAGING:
            made.problems.append(f"{token}: {_STAGED}")
        elif token in ("mm", "posix", "cma") and "shm" not in made.left_out:
            made.problems.append(f"{token}: {_ITSELF}")
    return made


def map_transports(value: str) -> Transports:
    """A value of UCX_TLS: "rc,cuda_copy", "^tcp", "all"."""
    value = value.strip()
    if value.startswith("^"):
        return _all_but(_tokens(value[1:]))
    tokens = _tokens(value)
    made = Transports(problems=_unknown(tokens))
    if "all" in tokens:
        return made
    made.left_out = {b for b, names in _ALLOWED.items() if not set(names) & set(tokens)}
    if made.left_out == set(ALL):
        made.left_out = set()
        if not made.problems:
            made.problems.append("it names no transport that moves data; KVXFER_BACKENDS does")
    if set(tokens) & set(_UNRELIABLE) and not set(tokens) & {"ib", *_RC}:
        made.problems.append("kvxfer's verbs has RC queue pairs, no ud or dc")
    return made
