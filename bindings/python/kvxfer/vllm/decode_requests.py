"""The scheduler's half, decode: requests that come with a reference, until they are loaded."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvxfer.vllm.blocks import BlockTable
from kvxfer.vllm.division import Division
from kvxfer.vllm.log import logger, shown
from kvxfer.vllm.reference import (
    KEY,
    RELEASE,
    BadReference,
    Reference,
    Worker,
    contents_of,
    prompt_hash,
    release_of,
)
from kvxfer.vllm.step import Fetch, GivenUp, Heard, Offer, Part, Returned, Step

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from kvxfer.vllm.fingerprint import Fingerprint
    from kvxfer.vllm.settings import Settings


_MAX_LOADED = 4096
_RENEW_S = 0.2  # at the least, between two renewals, whatever a reference says of its lease
_SAME_FAILED = "the request that came first with this reference could not be loaded"


class _InUse(BadReference):
    """The reference is good, and another request has it."""


@dataclass
class _Load:
    """A request that comes with a reference, until it is loaded or given up."""

    reference: Reference
    contents: str
    renewed: float = field(default_factory=time.monotonic)
    computed: int = 0  # tokens that are here already, when it was last asked
    asked: float = 0.0  # when vLLM first wanted to make room for it
    begun: float = 0.0  # when it had


@dataclass
class _Destination:
    """Blocks that were offered to a prefill engine, until it writes no more into them."""

    blocks: list[KVCacheBlock]
    unsettled: int = 0  # workers that have ended the request without knowing that
    kept: bool = False  # for them, while the request may be done without these blocks


class DecodeRequests:
    """Puts into ``step``, the one that is being made, what the workers are to do."""

    def __init__(
        self, settings: Settings, table: BlockTable, fingerprint: Fingerprint, fails: bool
    ) -> None:
        """``fails``: a request that cannot be loaded is to fail, not to be computed here."""
        self.step = Step()
        self.workers: tuple[Worker, ...] = ()
        self.division: Division | None = None
        self.block_pool: BlockPool | None = None
        self._settings = settings
        self._table = table
        self._fingerprint = fingerprint
        self._fails = fails
        self._loads: dict[str, _Load] = {}
        self._first: dict[str, str] = {}  # by transfer, the request in _loads that has it
        # Requests that came with the reference of one in _loads, which is not read twice. Several
        # answers to one prompt (n) come so.
        self._followers: dict[str, str] = {}
        # Loads that were given up while others follow, until nothing of them lands any more.
        self._ending: dict[str, _Load] = {}
        self._loaded: OrderedDict[str, None] = OrderedDict()  # transfers, lately
        self._destinations: dict[str, _Destination] = {}  # by request
        self._refused: dict[str, str] = {}  # not yet told to the workers

    def expect(self, request: Request, params: dict[str, Any], refused: str = "") -> None:
        """``refused``: why this engine does not load what they refer to; its blocks are given back."""
        reference = params.get(KEY)
        if isinstance(reference, dict) and reference.get("mode") == RELEASE:
            self._give_back(reference)
            return
        if getattr(request, "abort_immediately", False):
            # vLLM has refused it, and says so by a request that stands for it, with another prompt.
            logger.info(
                "kvxfer: request %s was refused before it was admitted; its blocks are given back",
                request.request_id,
            )
            self._give_back(reference)
            return
        try:
            if refused:
                raise BadReference(refused)
            self._load(request, self._read(reference, request))
        except BadReference as error:
            if not isinstance(error, _InUse):
                self._give_back(reference)
            self._refuse(request, shown(error))

    def _load(self, request: Request, reference: Reference) -> None:
        tokens = reference.tokens or self._pushed_tokens(request)
        hashed = prompt_hash(request, tokens)
        contents = contents_of(hashed, reference.groups, reference.block_tokens)
        first = self._first.get(reference.transfer)
        if first is None:
            self._first[reference.transfer] = request.request_id
            self._loads[request.request_id] = _Load(reference, contents)
        elif self._loads[first].contents == contents:
            self._followers[request.request_id] = first
        else:
            raise _InUse(f"its reference is that of request {first}, which has another prompt")

    def _drop(self, request: str) -> _Load | None:
        """Forgets a load; None if there was none."""
        load = self._loads.pop(request, None)
        if load is not None:
            del self._first[load.reference.transfer]
        return load

    def _give_back(self, params: Any) -> None:
        """Returns the blocks of a reference that will not be loaded, as far as it can be parsed."""
        found = release_of(params)
        if found is not None:
            self.step.returned.append(Returned(*found, None))

    def _return(self, reference: Reference) -> None:
        self.step.returned.append(
            Returned(reference.transfer, reference.workers, reference.division)
        )

    def _refuse(self, request: Request, why: str) -> None:
        """It is not loaded: it fails, as a worker then says, or is computed here."""
        if self._fails:
            self._refused[request.request_id] = why
        else:
            logger.warning("kvxfer: request %s: %s", request.request_id, why)

    def _read(self, params: Any, request: Request) -> Reference:
        reference = Reference.from_params(params, request.num_prompt_tokens)
        why = self._fingerprint.differs(reference.fingerprint)
        if why:
            raise BadReference(why)
        self._check_division(reference.division)
        if reference.groups and len(reference.groups) != len(self._table.groups):
            raise BadReference(
                f"the reference has {len(reference.groups)} groups of blocks, this model "
                f"{len(self._table.groups)}"
            )
        if reference.mode == "pull" and (not reference.groups or reference.tokens == 0):
            raise BadReference("the reference names no blocks to be read")
        return reference

    def _check_division(self, theirs: Division) -> None:
        ours = self.division
        if ours is None:
            raise BadReference("this engine's workers have not said how they divide the model")
        if [sum(stages) for stages in theirs.layers] != [sum(stages) for stages in ours.layers]:
            raise BadReference(
                f"the prefill engine has {[sum(stages) for stages in theirs.layers]} layers in its KV "
                f"caches, this one {[sum(stages) for stages in ours.layers]}"
            )

    def _pushed_tokens(self, request: Request) -> int:
        """What the prefill engine computes of a prompt, where it could not say so yet."""
        tokens = request.num_prompt_tokens
        return tokens - self._table.left_to_decode(tokens)

    def matched_tokens(self, request: Request, computed: int) -> int | None:
        """How many tokens beyond ``computed`` are to be had from the other engine. None: ask again. One
        that follows another finds in the prefix cache what that one has loaded."""
        first = self._followers.get(request.request_id)
        if first in self._loads or first in self._ending:
            return None
        self._followers.pop(request.request_id, None)
        if request.request_id in self._refused:
            # Goes through the motions of a load, which then fails.
            return max(0, request.num_prompt_tokens - computed)
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return 0
        load.computed = computed
        load.asked = load.asked or time.monotonic()
        left = max(0, self._loadable(load, request) - computed)
        if load.reference.transfer in self._loaded and left <= self._table.largest_block():
            # Another answer to the same prompt has loaded all whole blocks, and used the lease up. Of a
            # prompt that ends with a whole block vLLM computes that one again.
            self._drop(request.request_id)
            return 0
        return left

    def _loadable(self, load: _Load, request: Request) -> int:
        prompt = request.num_prompt_tokens
        tokens = load.reference.tokens or self._pushed_tokens(request)
        if self._table.has_state():
            # The state is of exactly so many tokens, and the last one is computed from it.
            return tokens if tokens < prompt else 0
        # The last token is computed in any case. With a sliding window it needs a block that an
        # allocation for all tokens would leave out.
        return min(tokens, prompt - 1) if self._table.has_window() else tokens

    # --- blocks for it are there ---

    def after_allocation(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        refused = self._refused.pop(request.request_id, None)
        if refused is not None and external > 0:
            self.step.refused[request.request_id] = refused
        load = self._loads.get(request.request_id)
        if load is None or load.begun:
            return
        load.begun = time.monotonic()
        if external <= 0:
            self._drop(request.request_id)
            self._return(load.reference)
            return
        last = load.computed + external  # vLLM may have taken less than was to be had
        try:
            parts = self._table.parts(blocks.get_block_ids(), load.computed, last)
            if self._table.has_state() and last != self._loadable(load, request):
                raise BadReference("vLLM has taken less than the tokens that the state is of")
            if load.reference.mode == "pull":
                self._check_window(load.reference, parts)
        except BadReference as error:
            self.step.refused[request.request_id] = shown(error)
            self._return(load.reference)
            return
        if load.reference.mode == "pull":
            self.step.fetches.append(
                Fetch(request.request_id, load.contents, load.reference, parts)
            )
        else:
            offered = [each for group in blocks.blocks for each in group if not each.is_null]
            self._destinations[request.request_id] = _Destination(offered)
            self.step.offers.append(
                Offer(
                    request.request_id,
                    load.contents,
                    load.reference,
                    parts,
                    self.workers,
                    self._own_division(),
                    tuple(self._table.kernel_block_tokens),
                )
            )

    def _own_division(self) -> Division:
        assert self.division is not None  # _read has seen it
        return self.division

    def _check_window(self, reference: Reference, parts: Sequence[Part]) -> None:
        for part, theirs, tokens in zip(
            parts, reference.groups, reference.block_tokens, strict=True
        ):
            if part.first < theirs.first_block * tokens and part.first < part.last:
                raise BadReference(
                    "the prefill engine has freed a block that this one needs of a sliding window: "
                    "give both the same --block-size"
                )

    def finished(self, request: Request) -> bool:
        """Whether it had a load that has not ended: what was begun ends as the workers say, what was
        not is given back."""
        load = self._drop(request.request_id)
        refused = self._refused.pop(request.request_id, None)
        follows = self._followers.pop(request.request_id, None)
        if load is None:
            return refused is not None or follows is not None
        followers = self._followers_of(request.request_id)
        if load.begun:
            # What prefill writes, it writes once.
            keeps = bool(followers) and load.reference.mode == "pull"
            self.step.given_up.append(GivenUp(request.request_id, keeps))
            if keeps:
                self._ending[request.request_id] = load
            elif self._fails:
                self._refused |= dict.fromkeys(followers, _SAME_FAILED)
        elif followers:
            self._hand_over(request.request_id, load)
        else:
            self._return(load.reference)
        return True

    def _followers_of(self, request: str) -> list[str]:
        return [each for each, first in self._followers.items() if first == request]

    def _hand_over(self, request: str, load: _Load) -> None:
        """To the next of those that follow it; if all have gone meanwhile, the blocks are given back."""
        followers = self._followers_of(request)
        if not followers:
            self._return(load.reference)
            return
        heir, *others = followers
        del self._followers[heir]
        self._followers |= dict.fromkeys(others, heir)
        self._first[load.reference.transfer] = heir
        self._loads[heir] = _Load(load.reference, load.contents)

    def loading(self) -> list[str]:
        """Requests that have blocks for it."""
        return [request for request, load in self._loads.items() if load.begun]

    def fail_all(self, why: str) -> None:
        """Loads that are under way."""
        for request, load in self._loads.items():
            if load.begun:
                self.step.failed[request] = why

    # --- each step ---

    def want(self) -> None:
        now = time.monotonic()
        self._free_blocks_that_wait(now)
        for load in self._loads.values():
            every = max(_RENEW_S, min(load.reference.lease, self._settings.lease) / 3)
            if now >= load.renewed + every:
                load.renewed = now
                self.step.wanted.append(load.reference)

    def _free_blocks_that_wait(self, now: float) -> None:
        """Two engines may wait for each other: prefill for room to compute what this one has made room for,
        and this one for room to load what prefill keeps. So one that has waited for long gets that of
        one that waits for prefill."""
        limit = self._settings.timeout
        pushed = [
            (load.begun, request)
            for request, load in self._loads.items()
            if load.begun and load.reference.mode == "push" and now > load.begun + limit
        ]
        waits = any(
            load.asked and not load.begun and now > load.asked + limit
            for load in self._loads.values()
        )
        if waits and pushed:
            _, request = min(pushed)
            self._loads[request].begun = now  # the next one only if that does not suffice
            self.step.failed[request] = (
                f"nothing has come of it for {limit:g} s, and others wait for its blocks"
            )

    def hear(self, heard: Heard | None, output: KVConnectorOutput) -> None:
        for request, change in (heard.unsettled if heard is not None else {}).items():
            destination = self._destinations.get(request)
            if destination is not None:
                destination.unsettled += change
        for request in output.finished_recving or ():
            load = self._drop(request)
            self._keep(request)
            ended = self._ending.pop(request, None)
            if ended is not None:
                self._hand_over(request, ended)
            elif request not in output.failed_recving:
                self._remember(load)
            elif self._fails:
                self._refused |= dict.fromkeys(self._followers_of(request), _SAME_FAILED)
        self._let_go()

    def _remember(self, load: _Load | None) -> None:
        if load is not None:
            self._loaded[load.reference.transfer] = None
            if len(self._loaded) > _MAX_LOADED:
                self._loaded.popitem(last=False)

    def keeps_blocks(self) -> bool:
        return self.kept_blocks() > 0

    def kept_blocks(self) -> int:
        """Of loads that have ended, into which a peer may still write."""
        return sum(len(each.blocks) for each in self._destinations.values() if each.kept)

    def _keep(self, request: str) -> None:
        """vLLM frees the blocks of a load that has ended, and must not use them for another."""
        destination = self._destinations.get(request)
        if destination is None:
            return
        if destination.unsettled == 0 or self.block_pool is None:
            del self._destinations[request]
            return
        self.block_pool.touch(destination.blocks)
        destination.kept = True

    def _let_go(self) -> None:
        for request, destination in list(self._destinations.items()):
            if destination.kept and destination.unsettled == 0 and self.block_pool is not None:
                self.block_pool.free_blocks(reversed(destination.blocks))
                del self._destinations[request]
