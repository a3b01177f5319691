"""Prefill, push: writes of what the step computes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kvxfer
from kvxfer.vllm.caches import RegisteredCaches
from kvxfer.vllm.layers import StepLayers, is_microbatched
from kvxfer.vllm.push import Push


_NOT_ENDED = "vLLM has not ended the step that was to compute it"


@dataclass
class _Layer:
    """One layer of a write that is not computed yet. With a flag it is already posted and waits for the
    flag; otherwise it is posted later."""

    lease: str
    push: Push
    what: dict[str, Any]
    flag: kvxfer.ReadyFlag | None


class LayerWrites:
    """Of the step that is being computed. In host memory a layer is computed when vLLM has saved it; on a
    GPU it is in the stream then, before the event of its last save.

    ``layer_is_saved`` may be called by any thread, the rest by the engine's."""

    def __init__(self, agent: kvxfer.Agent, fail: Callable[[str, Push, str], None]) -> None:
        """``fail``: of a lease, and why."""
        self._agent = agent
        self._fail = fail
        self._layers = StepLayers()
        self._waiting: dict[str, list[_Layer]] = {}
        self._events: dict[str, Any] = {}
        self._computing: dict[str, Push] = {}  # by lease
        self.caches: RegisteredCaches | None = None

    def begin_step(self) -> None:
        self.all_is_computed(_NOT_ENDED)
        self._layers.begin(is_microbatched())

    def add(self, layer: str, lease: str, push: Push, what: dict[str, Any]) -> None:
        """``what``: arguments of write_layers. Raises what write_layers raises."""
        flag = kvxfer.ReadyFlag() if self._stream() is None else None
        if flag is None:
            push.unposted += 1
        else:
            push.transfers.append(self._agent.write_layers(**what, ready=flag))
        self._computing[lease] = push
        self._waiting.setdefault(layer, []).append(_Layer(lease, push, what, flag))

    def layer_is_saved(self, layer: str) -> None:
        """For some of the step's tokens, or for all."""
        if not self._computing:
            return
        stream = self._stream()
        if stream is not None and layer in self._waiting:
            self._events[layer] = _now_in(stream)
        computed = self._layers.saved(layer)
        if computed:
            self._send(computed)

    def all_is_computed(self, broken: str = "") -> None:
        """``broken``: empty, or why some layers may not be computed. Their pushes fail then, and what is
        left of them is not sent."""
        reopened = self._layers.end()
        if broken:
            for lease, push in self._computing.items():
                self._fail(lease, push, broken)
        if reopened:
            for lease, push in self._computing.items():
                self._fail(lease, push, f"layer {reopened} was saved again after it had been sent")
        if not self._layers.layer_by_layer:
            self._events.clear()  # each is of one microbatch alone
        for layer in list(self._waiting):
            self._send(layer)
        self._computing.clear()

    def _send(self, layer: str) -> None:
        event = self._events.pop(layer, None)
        for waiting in self._waiting.pop(layer, ()):
            if waiting.flag is None:
                self._post(waiting, event)
            elif not waiting.push.abandoned:
                waiting.flag.set()

    def _post(self, layer: _Layer, event: Any) -> None:
        push = layer.push
        push.unposted -= 1
        if push.abandoned:
            return
        after = {"stream": self._stream()} if event is None else {"event": event}
        try:
            push.transfers.append(self._agent.write_layers(**layer.what, **after))
        except (kvxfer.Error, ValueError, TypeError, OverflowError) as error:
            self._fail(layer.lease, push, str(error))

    def _stream(self) -> Any:
        assert self.caches is not None
        return self.caches.stream()


def _now_in(stream: Any) -> Any:
    """None: no event is to be had, and what is sent later goes after all that is in the stream then."""
    try:
        return stream.record_event()
    except RuntimeError:
        return None
