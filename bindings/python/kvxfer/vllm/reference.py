"""What a prefill engine says of a request that it has computed, in ``kv_transfer_params``: enough to
find it and to ask for its blocks, and no key to anything. It goes through proxies and logs, and may
be lost or altered there: whoever fetches by it says a hash of the prompt *it* has, which the lease's
owner compares with its own, so that the blocks of another prompt are not to be had however the
reference reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from kvxfer.vllm.division import Division

if TYPE_CHECKING:
    from vllm.v1.request import Request

VERSION = 3
KEY = "kvxfer"  # in kv_transfer_params
MODES = ("pull", "push")
RELEASE = "release"
"""In place of a mode, of a reference that a proxy sends back: nobody will use it."""

_MAX_WORKERS = 1024
_MAX_CACHES = 64
_MAX_LAYERS = 1 << 16
_MAX_FACTORS = 64
_MAX_TOKENS = 1 << 24
_MAX_GROUPS = 64
_MAX_NAME = 120
_MAX_RATIO = 1024  # of blocks of kernels in one of the scheduler
_NAME = re.compile(r"[\x21-\x7e]+")
_INCARNATION = re.compile(r"[0-9a-f]{32}")


class BadReference(ValueError):
    """Says which field, and what it should be."""


@dataclass(frozen=True)
class Worker:
    """One rank of an engine: where its agent listens, and which life of it is meant."""

    address: str
    incarnation: str


@dataclass(frozen=True)
class GroupBlocks:
    """Blocks of one KV cache group, in the order of the request's tokens, from ``first_block`` of the
    request on: those before it have left a sliding window."""

    first_block: int
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    mode: str
    engine: str
    transfer: str
    """The name of this attempt, and of the lease on its blocks."""
    tokens: int
    """Of the prompt, that are computed; 0 in a push that was begun before."""
    fingerprint: Mapping[str, str]
    """Hashes of all that the bytes depend on, by factor."""
    workers: tuple[Worker, ...]
    """As ``division`` numbers them."""
    division: Division
    groups: tuple[GroupBlocks, ...] = ()
    block_tokens: tuple[int, ...] = ()
    """Tokens of a block, of each group."""
    lease: float = 30.0
    """Seconds that the prefill engine keeps the blocks for one that does not say that it waits."""

    def to_params(self) -> dict[str, Any]:
        params: dict[str, Any] = {
            "version": VERSION,
            "mode": self.mode,
            "engine": self.engine,
            "transfer": self.transfer,
            "tokens": self.tokens,
            "fingerprint": dict(self.fingerprint),
            "workers": [[worker.address, worker.incarnation] for worker in self.workers],
            "tp": self.division.tp,
            "layers": [list(stages) for stages in self.division.layers],
            "lease": self.lease,
        }
        if self.groups:
            params["first_blocks"] = [group.first_block for group in self.groups]
            params["blocks"] = [to_runs(group.ids) for group in self.groups]
            params["block_tokens"] = list(self.block_tokens)
        return params

    @staticmethod
    def from_params(params: Any, max_tokens: int = _MAX_TOKENS) -> Reference:
        """Of a prompt of ``max_tokens``, which bounds what is unpacked. BadReference: anything that is
        not as to_params makes it."""
        if not isinstance(params, dict):
            raise BadReference(f"kv_transfer_params[{KEY!r}] is no object")
        version = _integer(params, "version", 1 << 31)
        if version != VERSION:
            raise BadReference(
                f"the prefill engine's connector speaks version {version}, this one {VERSION}"
            )
        mode = params.get("mode")
        if mode not in MODES:
            raise BadReference(f"mode is {mode!r}, not one of {', '.join(MODES)}")
        tokens = _integer(params, "tokens", _MAX_TOKENS + 1, 0)
        if tokens > max_tokens:
            raise BadReference(f"the reference has {tokens} tokens, the prompt {max_tokens}")
        block_tokens = _integers(params.get("block_tokens", []), "block_tokens")
        workers = tuple(workers_of(params))
        return Reference(
            mode=mode,
            engine=_text(params, "engine"),
            transfer=_text(params, "transfer"),
            tokens=tokens,
            fingerprint=fingerprint_of(params),
            workers=workers,
            division=division_of(params, len(workers)),
            groups=tuple(_groups(params, block_tokens, tokens)),
            block_tokens=tuple(block_tokens),
            lease=_seconds(params.get("lease", 30.0)),
        )


def is_name(transfer: Any) -> bool:
    """Whether it may be that of a transfer."""
    return (
        isinstance(transfer, str)
        and len(transfer) <= _MAX_NAME
        and _NAME.fullmatch(transfer) is not None
    )


def is_address(text: Any) -> bool:
    """Whether it may be that of a worker."""
    return isinstance(text, str) and len(text) <= 300 and _NAME.fullmatch(text) is not None


def spoken_name(engine: str) -> str:
    """As references carry the id of an engine: as it is, or where it has other characters than those
    of a name or too many, in a form that is one."""
    if is_name(engine):
        return engine
    digest = hashlib.sha256(engine.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{quote(engine, errors='replace')[: _MAX_NAME - 13]}~{digest}"


def release_of(params: Any) -> tuple[str, tuple[Worker, ...]] | None:
    """The transfer that a reference names, and those workers that it names well: enough to give back the
    blocks of a reference that cannot be used for anything else. None: not even that can be read."""
    if not isinstance(params, dict) or not is_name(params.get("transfer")):
        return None
    entries = params.get("workers")
    workers = []
    for entry in entries[:_MAX_WORKERS] if isinstance(entries, list | tuple) else ():
        try:
            workers.append(_worker(entry))
        except BadReference:
            continue
    return (params["transfer"], tuple(dict.fromkeys(workers))) if workers else None


def contents_of(
    prompt_hash: str, groups: Sequence[GroupBlocks] = (), block_tokens: Sequence[int] = ()
) -> str:
    """What the blocks of a lease hold: which tokens of which prompt. Prefill and decode each say it of
    their own; it is a secret of the two, so no log shows it."""
    where = json.dumps([[group.first_block for group in groups], list(block_tokens)])
    shape = hashlib.sha256(where.encode()).hexdigest()[:8]
    return f"{prompt_hash}:{shape}"


def prompt_hash(request: Request, tokens: int) -> str:
    """Of all that the KV of the first ``tokens`` tokens depends on, but for the model."""
    digest = hashlib.sha256()
    ids = request.prompt_token_ids
    if ids is not None and tokens > len(ids):  # of the answer, too
        ids = request.all_token_ids
    if ids is not None:
        digest.update(np.asarray(ids[:tokens], dtype="<i8").tobytes())
    embeddings = getattr(request, "prompt_embeds", None)
    if embeddings is not None:
        import torch

        digest.update(embeddings[:tokens].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    lora = getattr(request, "lora_request", None)
    mask = getattr(request, "prompt_is_token_ids", None)
    features = [
        [str(each.identifier), each.mm_position.offset, each.mm_position.length]
        for each in getattr(request, "mm_features", None) or ()
    ]
    further = [
        tokens,
        lora.lora_name if lora else None,
        getattr(request, "cache_salt", None),
        None if mask is None else [bool(each) for each in mask[:tokens]],
        features,
    ]
    digest.update(json.dumps(further).encode())
    return digest.hexdigest()[:32]


def to_runs(ids: Iterable[int]) -> list[int]:
    """[start, count, start, count, ...]: blocks of a request are often neighbours."""
    runs: list[int] = []
    for block in ids:
        if runs and block == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [block, 1]
    return runs


def from_runs(runs: Any, most: int, what: str = "blocks") -> tuple[int, ...]:
    """BadReference: not runs, or of more than ``most`` blocks."""
    numbers = _integers(runs, what)
    if len(numbers) % 2 != 0:
        raise BadReference(f"{what} is not of pairs of start and count")
    counts = numbers[1::2]
    if sum(counts) > most or 0 in counts:
        raise BadReference(f"{what} names {sum(counts)} blocks, where there are {most}")
    ids: list[int] = []
    for start, count in zip(numbers[::2], counts, strict=True):
        ids.extend(range(start, start + count))
    return tuple(ids)


def _groups(params: dict[str, Any], block_tokens: list[int], tokens: int) -> list[GroupBlocks]:
    blocks = params.get("blocks", [])
    firsts = _integers(params.get("first_blocks", []), "first_blocks")
    if not isinstance(blocks, list) or not len(blocks) == len(firsts) == len(block_tokens):
        raise BadReference("blocks, first_blocks and block_tokens are not lists of one length")
    if len(blocks) > _MAX_GROUPS or 0 in block_tokens:
        raise BadReference(f"blocks has above {_MAX_GROUPS} groups, or block_tokens a 0")
    found = []
    for first, runs, size in zip(firsts, blocks, block_tokens, strict=True):
        # Whole blocks of the scheduler, of which those of kernels are a part.
        found.append(GroupBlocks(first, from_runs(runs, tokens // size + _MAX_RATIO)))
    return found


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86400:
        raise BadReference("lease is no number of seconds up to a day")
    return float(value)


def workers_of(params: dict[str, Any]) -> list[Worker]:
    """BadReference: not as to_params makes them."""
    found = params.get("workers")
    if not isinstance(found, list) or not 0 < len(found) <= _MAX_WORKERS:
        raise BadReference(f"workers is not a list of 1 to {_MAX_WORKERS}")
    return [_worker(entry) for entry in found]


def division_of(params: dict[str, Any], workers: int) -> Division:
    """Of so many workers. BadReference: not as to_params makes it."""
    tp = _integer(params, "tp", _MAX_WORKERS + 1)
    layers = params.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_CACHES:
        raise BadReference(f"layers is not a list of 1 to {_MAX_CACHES} caches")
    caches = tuple(tuple(_integers(stages, "layers", _MAX_LAYERS)) for stages in layers)
    if any(len(stages) != len(caches[0]) or not any(stages) for stages in caches):
        raise BadReference("layers does not say of each cache how many each stage has")
    division = Division(tp, caches)
    if division.workers != workers:
        raise BadReference(
            f"{workers} workers are not {tp} for each of {division.stages} pipeline stages"
        )
    return division


def fingerprint_of(params: dict[str, Any]) -> dict[str, str]:
    """BadReference: not as to_params makes it."""
    hashes = params.get("fingerprint")
    if not isinstance(hashes, dict) or len(hashes) > _MAX_FACTORS:
        raise BadReference(f"fingerprint is no object of up to {_MAX_FACTORS} factors")
    if not all(is_name(name) and is_name(value) for name, value in hashes.items()):
        raise BadReference("fingerprint has what is no hash of a factor")
    return dict(hashes)


def _worker(entry: Any) -> Worker:
    if not isinstance(entry, list | tuple) or len(entry) != 2:
        raise BadReference("an entry of workers is not [address, incarnation]")
    address, incarnation = entry
    if not is_address(address):
        raise BadReference("an address of workers is no host:port")
    if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
        raise BadReference("an incarnation of workers is not 32 hexadecimal digits")
    return Worker(address, incarnation)


def _text(params: dict[str, Any], key: str) -> str:
    text = params.get(key)
    if not is_name(text):
        raise BadReference(f"{key} is not a text of 1 to {_MAX_NAME} printable characters")
    return str(text)


def _integer(params: dict[str, Any], key: str, limit: int, default: int | None = None) -> int:
    return _integers([params.get(key, default)], key, limit)[0]


def _integers(values: Any, what: str, limit: int = 1 << 32) -> list[int]:
    if not isinstance(values, list | tuple):
        raise BadReference(f"{what} is no list")
    for value in values:
        if type(value) is not int or not 0 <= value < limit:
            raise BadReference(f"{what} has {value!r}, no integer from 0 to {limit - 1}")
    return list(values)
