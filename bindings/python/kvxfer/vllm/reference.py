"""What a prefill engine says of a request that it has computed, in ``kv_transfer_params``: enough to
find it and to ask for its blocks, and no key to anything. It goes through proxies and logs, and may
be lost or altered there: whoever fetches by it names the lease together with a hash of the prompt
*it* has, so that the blocks of another prompt are not to be had however the reference reads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vllm.v1.request import Request

VERSION = 1
KEY = "kvxfer"  # in kv_transfer_params
MODES = ("pull", "push")

_MAX_WORKERS = 1024
_MAX_BLOCKS = 1 << 24
_MAX_NAME = 120
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
    """The name of this attempt, the part of the lease's that travels."""
    tokens: int
    """Of the prompt, that are computed; 0 in a push that was begun before."""
    fingerprint: str
    workers: tuple[Worker, ...]
    """By tensor-parallel rank."""
    groups: tuple[GroupBlocks, ...] = ()
    block_tokens: tuple[int, ...] = ()
    """Tokens of a block, of each group."""

    def to_params(self) -> dict[str, Any]:
        params: dict[str, Any] = {
            "version": VERSION,
            "mode": self.mode,
            "engine": self.engine,
            "transfer": self.transfer,
            "tokens": self.tokens,
            "fingerprint": self.fingerprint,
            "workers": [[worker.address, worker.incarnation] for worker in self.workers],
        }
        if self.groups:
            params["first_blocks"] = [group.first_block for group in self.groups]
            params["blocks"] = [to_runs(group.ids) for group in self.groups]
            params["block_tokens"] = list(self.block_tokens)
        return params

    @staticmethod
    def from_params(params: Any) -> Reference:
        """BadReference: anything that is not as to_params makes it."""
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
        reference = Reference(
            mode=mode,
            engine=_text(params, "engine"),
            transfer=_text(params, "transfer"),
            tokens=_integer(params, "tokens", 1 << 40, 0),
            fingerprint=_text(params, "fingerprint"),
            workers=tuple(_workers(params)),
            groups=tuple(_groups(params)),
            block_tokens=tuple(_integers(params.get("block_tokens", []), "block_tokens")),
        )
        if len(reference.block_tokens) != len(reference.groups):
            raise BadReference("block_tokens does not have one for each of blocks")
        return reference


def lease_name(transfer: str, prompt_hash: str) -> str:
    """What a prefill engine's agents know the blocks of a request by."""
    return f"{transfer}:{prompt_hash}"


def prompt_hash(request: Request, tokens: int) -> str:
    """Of all that the KV of the first ``tokens`` tokens depends on, but for the model."""
    digest = hashlib.sha256()
    ids = request.prompt_token_ids
    if ids is not None:
        digest.update(np.asarray(ids[:tokens], dtype="<i8").tobytes())
    embeddings = getattr(request, "prompt_embeds", None)
    if embeddings is not None:
        digest.update(embeddings[:tokens].contiguous().cpu().view(-1).numpy().tobytes())
    lora = getattr(request, "lora_request", None)
    salt = getattr(request, "cache_salt", None)
    digest.update(f"|{tokens}|{lora.lora_name if lora else ''}|{salt or ''}".encode())
    for feature in getattr(request, "mm_features", None) or ():
        position = feature.mm_position
        digest.update(f"|{feature.identifier}@{position.offset}+{position.length}".encode())
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


def from_runs(runs: Sequence[Any], what: str = "blocks") -> tuple[int, ...]:
    numbers = _integers(runs, what)
    if len(numbers) % 2 != 0:
        raise BadReference(f"{what} is not of pairs of start and count")
    ids: list[int] = []
    for start, count in zip(numbers[::2], numbers[1::2], strict=True):
        if len(ids) + count > _MAX_BLOCKS or start + count > 1 << 32:
            raise BadReference(f"{what} names more blocks than there can be")
        ids.extend(range(start, start + count))
    return tuple(ids)


def _groups(params: dict[str, Any]) -> list[GroupBlocks]:
    blocks = params.get("blocks", [])
    firsts = _integers(params.get("first_blocks", []), "first_blocks")
    if not isinstance(blocks, list) or len(blocks) != len(firsts):
        raise BadReference("blocks and first_blocks are not two lists of one length")
    return [
        GroupBlocks(first, from_runs(runs)) for first, runs in zip(firsts, blocks, strict=True)
    ]


def _workers(params: dict[str, Any]) -> list[Worker]:
    found = params.get("workers")
    if not isinstance(found, list) or not 0 < len(found) <= _MAX_WORKERS:
        raise BadReference(f"workers is not a list of 1 to {_MAX_WORKERS}")
    workers = []
    for entry in found:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise BadReference("an entry of workers is not [address, incarnation]")
        address, incarnation = entry
        if not isinstance(address, str) or not _NAME.fullmatch(address) or len(address) > 300:
            raise BadReference("an address of workers is no host:port")
        if not isinstance(incarnation, str) or not _INCARNATION.fullmatch(incarnation):
            raise BadReference("an incarnation of workers is not 32 hexadecimal digits")
        workers.append(Worker(address, incarnation))
    return workers


def _text(params: dict[str, Any], key: str) -> str:
    text = params.get(key)
    if not isinstance(text, str) or not _NAME.fullmatch(text) or len(text) > _MAX_NAME:
        raise BadReference(f"{key} is not a text of 1 to {_MAX_NAME} printable characters")
    return text


def _integer(params: dict[str, Any], key: str, limit: int, default: int | None = None) -> int:
    return _integers([params.get(key, default)], key, limit)[0]


def _integers(values: Any, what: str, limit: int = 1 << 32) -> list[int]:
    if not isinstance(values, list | tuple):
        raise BadReference(f"{what} is no list")
    for value in values:
        if type(value) is not int or not 0 <= value < limit:
            raise BadReference(f"{what} has {value!r}, no integer from 0 to {limit - 1}")
    return list(values)
