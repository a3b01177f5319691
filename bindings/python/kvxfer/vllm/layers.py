"""Which layers of a step are computed for all of its tokens, so that they may be sent.

vLLM says of each layer that it was saved, once for each microbatch of the step: with dual batch overlap
several times, from several threads, in any order among the layers. A step without microbatches goes
through the layers one after the other in one thread: there a layer is computed when the next one is
saved, and the last one at the end of the step.

That is checked, not only relied on: a layer that is saved again after it may have been sent is reported
at the end of the step. The layer that was saved last always waits until then, so no request has all of
its layers at the other engine before that check.
"""

from __future__ import annotations

import threading
from enum import Enum, auto


class _Leave(Enum):
    LAYER_BY_LAYER = auto()
    AT_THE_END = auto()


class StepLayers:
    """``saved`` may be called by any thread, the rest by the engine's."""

    def __init__(self) -> None:
        self.begin(microbatched=False)

    def begin(self, microbatched: bool) -> None:
        """Of a step, in the thread that computes it unless there are microbatches."""
        self._leave = _Leave.AT_THE_END if microbatched else _Leave.LAYER_BY_LAYER
        self._thread = threading.get_ident()
        self._last = ""
        self._sent: set[str] = set()
        self._reopened: list[str] = []

    @property
    def layer_by_layer(self) -> bool:
        return self._leave is _Leave.LAYER_BY_LAYER

    def saved(self, layer: str) -> str:
        """The layer that may be sent now, if any: the one that was saved before this one."""
        if layer in self._sent:
            self._reopened.append(layer)
            self._leave = _Leave.AT_THE_END
        if threading.get_ident() != self._thread:
            self._leave = _Leave.AT_THE_END
        if self._leave is _Leave.AT_THE_END or layer == self._last:
            return ""
        before, self._last = self._last, layer
        if before:
            self._sent.add(before)
        return before

    def end(self) -> str:
        """All layers are computed. A layer that was saved again after it was sent, if there is one:
        what has left of this step is not to be used."""
        return self._reopened[0] if self._reopened else ""


def is_microbatched() -> bool:
    """Whether the step that vLLM is about to compute is split (dual batch overlap)."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    return is_forward_context_available() and bool(
        getattr(get_forward_context(), "ubatch_slices", None)
    )
