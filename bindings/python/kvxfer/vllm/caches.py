"""vLLM's KV caches as kvxfer's: layers of one group that are alike are one cache, in the order of the
model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import kvxfer
from kvxfer.vllm.division import Division
from kvxfer.vllm.groups import Group
from kvxfer.vllm.kinds import HEADS, PAGES, TOKENS, Kind
from kvxfer.vllm.place import Place
from kvxfer.vllm.reference import GroupBlocks

if TYPE_CHECKING:
    import torch


# What the names of a draft model's layers begin with, where they are not numbered after the model's.
_DRAFTS = ("mtp", "draft_model")


@dataclass(frozen=True)
class Cache:
    """The same in all workers of an engine."""

    name: str
    group: int
    """Of those that take part in transfers, whose blocks it has."""
    kind: Kind
    layers: tuple[str, ...]
    """Of all stages, in the order of the model."""


def caches_of(kinds: Sequence[Sequence[Mapping[str, Kind]]]) -> tuple[list[Cache], Division]:
    """``kinds``: of each stage, of each group, by layer. Division's ``tp`` is 1 here. ValueError: stages
    that do not follow each other in the order of the model."""
    found: list[Cache] = []
    counts: list[tuple[int, ...]] = []
    for group in range(len(kinds[0])):
        stages = [(stage, layer) for stage, of in enumerate(kinds) for layer in of[group]]
        ordered = sorted(stages, key=lambda each: _order(each[1]))
        if [stage for stage, _ in ordered] != sorted(stage for stage, _ in stages):
            raise ValueError(
                "KvxferConnector does not support pipeline stages whose layers are not neighbours in "
                f"the model: {', '.join(layer for _, layer in ordered)}"
            )
        by_kind: dict[Kind, list[tuple[int, str]]] = {}
        for stage, layer in ordered:
            by_kind.setdefault(kinds[stage][group][layer], []).append((stage, layer))
        for number, (kind, members) in enumerate(by_kind.items()):
            name = f"group{group}" + (f".{number}" if number else "")
            found.append(Cache(name, group, kind, tuple(layer for _, layer in members)))
            of_stages = [stage for stage, _ in members]
            counts.append(tuple(of_stages.count(stage) for stage in range(len(kinds))))
    return found, Division(1, tuple(counts))


def _order(layer: str) -> tuple[bool, tuple[int, ...], str]:
    """By the numbers in its name. Those of a draft model, whose numbers may begin anew, come last."""
    parts = layer.split(".")
    numbers = tuple(int(part) for part in parts if part.isdecimal())
    return parts[0] in _DRAFTS, numbers or (1 << 30,), layer


class RegisteredCaches:
    """The tensors of this worker, which are kept alive."""

    def __init__(
        self,
        agent: kvxfer.Agent,
        groups: Sequence[Group],
        kinds: Sequence[Mapping[str, Kind]],
        tensors: Mapping[str, torch.Tensor],
        place: Place,
        fingerprint: int,
        drafts: bool = False,
    ) -> None:
        """``kinds``: of the layers of this worker, by group. ``drafts``: some are of a draft model."""
        self._drafts = drafts
        self.caches, division = caches_of(place.of_all_stages(list(kinds)))
        self.division = Division(place.tp, division.layers)
        self.number = place.worker
        self.shards = [
            self.division.shard(number, place.worker) for number in range(len(self.caches))
        ]
        self.models = [_model(cache, fingerprint) for cache in self.caches]
        self._groups = groups
        self._tensors = tensors
        self._device = next(iter(tensors.values())).device
        self._own = [set(of_group) for of_group in kinds]
        for memory in _memories([tensors[layer] for of in kinds for layer in of]):
            agent.register_memory(memory)
        for number, cache in enumerate(self.caches):
            self._register(agent, number, cache)
        self.kernel_block_tokens = kernel_block_tokens_of(groups, kinds, tensors, place)

    def _register(self, agent: kvxfer.Agent, number: int, cache: Cache) -> None:
        own = self.own_layers(number)
        if not own:
            return
        of_cache = [self._tensors[layer] for layer in own]
        tensor = _tensor(own, of_cache, cache.kind.content)
        layout = kvxfer.KvLayout.from_tensors(self.models[number], self.shards[number], [tensor])
        agent.register_kv_cache(cache.name, layout, [each.data_ptr() for each in of_cache])

    def own_layers(self, number: int) -> list[str]:
        """Of that cache, those of this worker."""
        cache = self.caches[number]
        return [layer for layer in cache.layers if layer in self._own[cache.group]]

    def stream(self) -> Any:
        """What this thread has given the GPU to compute is in it, and may still write into blocks that
        were freed since, or not have written yet what is to be sent. None: host memory."""
        return current_stream(self._device)

    def finish_drafts(self) -> None:
        """Waits until a draft model has written its KV. The tokens that end a request are known before
        that, while all other KV is written by then."""
        stream = self.stream() if self._drafts else None
        if stream is not None:
            stream.synchronize()

    def between(
        self,
        number: int,
        ours: GroupBlocks,
        theirs: GroupBlocks,
        their_block_tokens: int,
        first: int,
        last: int,
    ) -> dict[str, Any]:
        """What read_blocks and prepare_blocks take for a request's tokens from ``first`` to ``last`` in
        that cache, or for the state after token number ``last``."""
        cache = self.caches[number]
        what = {
            "cache": cache.name,
            "local_ids": np.asarray(ours.ids, np.uint32),
            "remote_ids": np.asarray(theirs.ids, np.uint32),
        }
        if self._groups[cache.group].is_state:
            return what | {"tokens": 1, "local_first_token": 0, "remote_first_token": 0}
        our_block_tokens = self.kernel_block_tokens[cache.group]
        unit = 1 if cache.kind.content == TOKENS else our_block_tokens
        span = Span.of(first, last, unit)
        return what | {
            "tokens": span.count,
            "local_first_token": span.after(ours.first_block, our_block_tokens, unit),
            "remote_first_token": span.after(theirs.first_block, their_block_tokens, unit),
        }


def kernel_block_tokens_of(
    groups: Sequence[Group],
    kinds: Sequence[Mapping[str, Kind]],
    tensors: Mapping[str, torch.Tensor],
    place: Place,
) -> list[int]:
    """Tokens of a kernel's block, of each group; the same in all stages that have layers of it."""
    own = [
        0
        if not of_group
        else group.block_tokens
        if group.is_state
        else int(tensors[next(iter(of_group))].shape[-2])
        for group, of_group in zip(groups, kinds, strict=True)
    ]
    return [max(of_stages) for of_stages in zip(*place.of_all_stages(own), strict=True)]


def _model(cache: Cache, fingerprint: int) -> kvxfer.KvModel:
    kind = cache.kind
    return kvxfer.KvModel(
        layers=len(cache.layers),
        heads=kind.heads,
        k_size=kind.k_size,
        v_size=kind.v_size,
        element=kind.element,
        fingerprint=fingerprint,
    )


def _tensor(layers: Sequence[str], tensors: Sequence[torch.Tensor], content: str) -> kvxfer.KvTensor:
    """vLLM's canonical view (block, head, token, then K and V of one head and token) as far as it is
    looked into."""
    first = tensors[0]
    for layer, tensor in zip(layers, tensors, strict=True):
        if tensor.shape != first.shape or tensor.stride() != first.stride():
            raise ValueError(
                f"KvxferConnector: the KV cache of {layer} has shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()}, that of {layers[0]} {tuple(first.shape)} and {first.stride()}"
            )
    axes = {4: "BHNC", 3: "BNC"}.get(first.dim())
    if axes is None:
        raise ValueError(
            f"KvxferConnector: the KV cache of {layers[0]} has shape {tuple(first.shape)}, "
            "not (blocks, heads, tokens, content)"
        )
    shape, strides = list(first.shape), list(first.stride())
    if content == TOKENS:
        return kvxfer.KvTensor(axes, shape, strides)
    strides = [stride * first.element_size() for stride in strides]
    size = int(np.prod(shape[-2:] if content == HEADS else shape[1:])) * first.element_size()
    if content == PAGES:
        axes, shape, strides = "BNC", shape[:1], strides[:1]
    else:
        shape, strides = shape[:-2], strides[:-2]
    # One "token": all of the block.
    return kvxfer.KvTensor(axes, [*shape, 1, size], [*strides, size, 1])


@dataclass(frozen=True)
class Span:
    """Tokens of a request as one worker's layout counts them, in whole units."""

    first: int
    count: int

    @staticmethod
    def of(first: int, last: int, unit: int) -> Span:
        return Span(first // unit, -(-last // unit) - first // unit)

    def after(self, block: int, block_tokens: int, unit: int) -> int:
        """Where it begins, counted from the begin of ``block`` on."""
        return self.first - block * block_tokens // unit


def current_stream(device: Any) -> Any:
    if device.type != "cuda":
        return None
    import torch

    return torch.cuda.current_stream(device)


def _memories(tensors: list[torch.Tensor]) -> list[kvxfer.RawMemory]:
    """The allocations that they are views of, each once."""
    found: dict[int, kvxfer.RawMemory] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        kind: Any = "host" if tensor.device.type == "cpu" else tensor.device.type
        found[storage.data_ptr()] = kvxfer.RawMemory(
            storage.data_ptr(), storage.nbytes(), kind, tensor.device.index or 0
        )
    return list(found.values())
