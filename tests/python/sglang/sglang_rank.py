"""One rank of prefill or decode: SGLang's classes of this backend, in a process of their own, over a KV
cache in host memory. A test calls its methods over a pipe, as SGLang's scheduler would."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

_PR_SET_PDEATHSIG = 1
AUX_ITEMS = (16, 256, 4096)  # as unlike as SGLang's own are
AUX_SLOTS = 8
HEAD_BYTES = 64
STATE_SLOTS = 12


@dataclasses.dataclass(frozen=True)
class Spec:
    role: str
    bootstrap: str  # "host:port"
    tp_rank: int = 0
    tp_size: int = 1
    layers: int = 3
    pages: int = 64
    page_tokens: int = 2
    heads: int = 4  # of the model
    mla: bool = False
    state: str = ""  # one of SGLang's
    dtype: str = "uint8"
    seed: int = 1
    environment: tuple[tuple[str, str], ...] = ()
    cuda: bool = False  # K, V and states lie in memory of the stand-in CUDA driver
    options: tuple[tuple[str, Any], ...] = ()

    def own_heads(self) -> range:
        if self.tp_size <= self.heads:
            each = self.heads // self.tp_size
            return range(self.tp_rank * each, (self.tp_rank + 1) * each)
        head = self.tp_rank * self.heads // self.tp_size
        return range(head, head + 1)

    def page_bytes(self) -> int:
        return self.page_tokens * (1 if self.mla else len(self.own_heads())) * HEAD_BYTES


def content(spec: Spec, layer: int) -> np.ndarray:
    """What prefill has computed for a buffer of a layer: pages, tokens, heads of the model, bytes."""
    generator = np.random.default_rng(spec.seed * 1000 + layer)
    heads = 1 if spec.mla else spec.heads
    shape = (spec.pages, spec.page_tokens, heads, HEAD_BYTES)
    return generator.integers(1, 256, shape, dtype=np.uint8)


def own_content(spec: Spec, layer: int, of: Spec) -> np.ndarray:
    """Of what ``of`` has computed, the heads of this rank; page by page."""
    whole = content(of, layer)
    part = whole if spec.mla else whole[:, :, list(spec.own_heads())]
    return np.ascontiguousarray(part).reshape(len(whole), -1)


def aux_content(spec: Spec, buffer: int) -> np.ndarray:
    generator = np.random.default_rng(spec.seed * 1000 + 500 + buffer)
    return generator.integers(1, 256, (AUX_SLOTS, AUX_ITEMS[buffer]), dtype=np.uint8)


def state_content(spec: Spec, buffer: int) -> np.ndarray:
    generator = np.random.default_rng(spec.seed * 1000 + 700 + buffer)
    return generator.integers(1, 256, (STATE_SLOTS, 96 * (buffer + 1)), dtype=np.uint8)


class Rank:
    """Its methods are called by name."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.senders: dict[int, Any] = {}
        self.receivers: dict[int, Any] = {}
        arguments = _publish(spec)
        from sglang.srt.disaggregation.utils import DisaggregationMode, KVClassType

        named = _class
        self._sender, self._receiver = named(KVClassType.SENDER), named(KVClassType.RECEIVER)
        prefill = spec.role == "prefill"
        buffers = range(spec.layers * (1 if spec.mla else 2))
        fill = (lambda array: array) if prefill else np.zeros_like
        if spec.cuda:
            ctypes.CDLL(os.environ["KVXFER_TEST_DRIVER"])  # found by its name from now on
            from kvxfer.sglang import memory

            memory.kind_of_device = lambda _: "cuda"  # as for --device cuda, which needs a GPU
        self.addresses: dict[int, int] = {}  # of the GPU, by that of a view for the CPU
        self.kv = [self._placed(fill(own_content(spec, each, spec))) for each in buffers]
        self.aux = [np.array(fill(aux_content(spec, each))) for each in range(len(AUX_ITEMS))]
        self.state = [
            self._placed(fill(state_content(spec, each))) for each in range(2 * bool(spec.state))
        ]
        self.manager = named(KVClassType.MANAGER)(
            self._kv_args(),
            DisaggregationMode.PREFILL if prefill else DisaggregationMode.DECODE,
            arguments,
            spec.mla,
        )

    def _placed(self, array: np.ndarray) -> np.ndarray:
        if not self.spec.cuda:
            return np.array(array)
        from cuda_standin import CudaMemory

        memory = CudaMemory(array.nbytes)
        view = memory.bytes().reshape(array.shape)
        view[:] = array
        self.addresses[view.ctypes.data] = memory.address
        self.kept = [*getattr(self, "kept", []), memory]
        return view

    def _infos(self, arrays: list[np.ndarray]) -> tuple[list[int], list[int], list[int]]:
        views = [each.ctypes.data for each in arrays]
        return (
            [self.addresses.get(each, each) for each in views],
            [each.nbytes for each in arrays],
            [each[0].nbytes for each in arrays],
        )

    def _kv_args(self) -> Any:
        from sglang.srt.disaggregation.base.conn import KVArgs, StateType

        spec, args = self.spec, KVArgs()
        args.engine_rank = spec.tp_rank
        args.gpu_id = args.system_dp_rank = args.pp_rank = 0
        args.prefill_start_layer, args.prefill_end_layer = 0, spec.layers
        args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens = self._infos(self.kv)
        args.kv_layer_ids = []
        args.kv_cache_dtype_str = spec.dtype
        args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = self._infos(self.aux)
        args.state_types = [StateType(spec.state)] if spec.state else []
        some = [self.state] if spec.state else []
        args.state_data_ptrs = [self._infos(each)[0] for each in some]
        args.state_data_lens = [self._infos(each)[1] for each in some]
        args.state_item_lens = [self._infos(each)[2] for each in some]
        args.state_layer_ids = [[] for _ in some]
        args.state_dim_per_tensor = [[] for _ in some]
        args.is_hybrid_mla_backend = False
        args.mla_compression_ratios = args.swa_kv_cache_layout = None
        args.ib_device = ""
        if not spec.mla:
            args.kv_head_num = len(spec.own_heads())
            args.total_kv_head_num = spec.heads
        args.page_size = spec.page_tokens
        return args

    # --- prefill ---

    def sender(self, room: int) -> None:
        self.senders[room] = self._sender(self.manager, self.spec.bootstrap, room)

    def init(self, room: int, pages: int, aux: int) -> int:
        prefix = self.senders[room].pop_decode_prefix_len()
        self.senders[room].init(pages, aux)
        return prefix

    def send(self, room: int, pages: list[int], state: list[int] | None = None) -> None:
        states = None if state is None else [np.array(state, np.int32)]
        self.senders[room].send(np.array(pages, np.int32), states)

    def hold(self) -> None:
        """What is computed is not done before let_go()."""
        from cuda_standin import CudaStream

        self.stream = CudaStream()
        self.stream.hold()

    def send_early(self, room: int, pages: list[int]) -> None:
        """As SGLang sends pages that a step which is still running writes."""
        self.senders[room]._early_send_wait_event = self.stream.record_event()
        self.send(room, pages)

    def let_go(self) -> None:
        self.stream.let_go()

    # --- decode ---

    def receiver(self, room: int) -> bool:
        """Whether SGLang could find out about prefill."""
        if not self.manager.try_ensure_parallel_info(self.spec.bootstrap):
            return False
        self.receivers[room] = self._receiver(self.manager, self.spec.bootstrap, room)
        self.receivers[room].init(prefill_dp_rank=0)
        return True

    def metadata(
        self, room: int, pages: list[int], aux: int, state: list[int] | None = None, prefix: int = 0
    ) -> None:
        states = None if state is None else [np.array(state, np.int32)]
        self.receivers[room].send_metadata(np.array(pages, np.int32), aux, states, prefix)

    def safe(self, room: int) -> bool:
        return self.manager.is_abort_release_safe(room, 1)

    def digest(self) -> str:
        """Of all that peers may write."""
        total = hashlib.sha256()
        for array in (*self.kv, *self.aux, *self.state):
            total.update(array.tobytes())
        return total.hexdigest()

    def wrong(
        self,
        prefill: Spec,
        pages: dict[int, int],
        aux: dict[int, int],
        state: dict[int, int] | None = None,
    ) -> list[str]:
        """Buffers that have anything but these pages and slots of prefill, by own number."""
        wrong = []
        for name, arrays, moved, source in (
            ("kv", self.kv, pages, lambda each: own_content(self.spec, each, prefill)),
            ("aux", self.aux, aux, lambda each: aux_content(prefill, each)),
            ("state", self.state, state or {}, lambda each: state_content(prefill, each)),
        ):
            for index, array in enumerate(arrays):
                expected = np.zeros_like(array)
                theirs = source(index)
                for mine, other in moved.items():
                    expected[mine] = theirs[other]
                if not np.array_equal(array, expected):
                    wrong.append(f"{name} {index}")
        return wrong

    # --- both ---

    def poll(self, room: int) -> int:
        return int(self._of(room).poll())

    def abort(self, room: int) -> None:
        self._of(room).abort()

    def clear(self, room: int) -> None:
        self._of(room).clear()

    def failure(self, room: int) -> str:
        try:
            self._of(room).failure_exception()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def sent_bytes(self, room: int) -> int:
        return self.senders[room].get_transfer_metric().transfer_total_bytes

    def close(self) -> list[str]:
        """The threads of kvxfer that are left."""
        self.manager.close()
        return [each.name for each in threading.enumerate() if each.name.startswith("kvxfer")]

    def forget_peers(self) -> None:
        """As after a cut that decode has not noticed."""
        self.manager.prefill_side._decoders.clear()

    def hurry(self) -> None:
        """Makes shorter how long a request lasts of which nothing is heard."""
        from kvxfer.sglang import wire

        wire.SILENT_S, wire.KEEP_S, wire.TELL_S = 1.0, 0.2, 0.3

    def port(self) -> int:
        return int(self.manager.agent.listen_address.rpartition(":")[2])

    def counts(self) -> dict[str, int]:
        """What the two sides and SGLang's manager keep."""
        side = self.manager.prefill_side or self.manager.decode_side
        kept = {name: len(value) for name, value in vars(side).items() if isinstance(value, dict)}
        if self.manager.prefill_side is not None:
            kept["writes"] = len(side._writer._by_word)
        kept["statuses"] = len(self.manager.request_status)
        kept["failures"] = len(self.manager.failure_records)
        return kept

    def tell(self, message: dict, malformed: bytes = b"") -> None:
        """To the only rank of prefill that was met."""
        from kvxfer.sglang import wire

        name = self.manager.decode_side._meetings.every()[0].name
        if malformed:
            self.manager.agent.notify(name, malformed).wait(5)
        else:
            wire.tell(self.manager.agent, name, message)

    def _of(self, room: int) -> Any:
        return (self.senders if self.spec.role == "prefill" else self.receivers)[room]


class Bootstrap:
    """SGLang's server by which ranks find each other."""

    def __init__(self, port: int) -> None:
        from sglang.srt.disaggregation.utils import KVClassType

        self.server = _class(KVClassType.BOOTSTRAP_SERVER)(host="127.0.0.1", port=port)


class Plugin:
    """What SGLang has after it has loaded its plugins."""

    def __init__(self, _: None) -> None: ...

    def parse(self, *arguments: str) -> str:
        import argparse

        from sglang.srt.server_args import ServerArgs

        parser = argparse.ArgumentParser(exit_on_error=False)
        ServerArgs.add_cli_args(parser)
        parsed = parser.parse_args(["--model-path", "dummy", *arguments])
        return parsed.disaggregation_transfer_backend

    def classes(self) -> dict[str, str]:
        """Of every backend that can be imported here, by SGLang's name."""
        from sglang.srt.disaggregation.utils import KVClassType

        return {each.name: _class(each).__module__ for each in KVClassType}

    def others(self) -> list[str]:
        from sglang.srt.disaggregation import utils
        from sglang.srt.disaggregation.utils import KVClassType, TransferBackend, get_kv_class
        from sglang.srt.managers import disagg_service

        assert disagg_service.TransferBackend is utils.TransferBackend
        fake = get_kv_class(TransferBackend.FAKE, KVClassType.SENDER)
        return [*(each.value for each in TransferBackend), fake.__name__]

    def register_without(self, module: str, owner: str, name: str) -> str:
        """What is said where SGLang lacks that."""
        import importlib

        import kvxfer.sglang

        holder = importlib.import_module(module)
        delattr(getattr(holder, owner) if owner else holder, name)
        try:
            kvxfer.sglang.register()
        except RuntimeError as error:
            return str(error)
        return ""


def _class(kind: Any) -> Any:
    from sglang.srt.disaggregation.utils import TransferBackend, get_kv_class

    return get_kv_class(TransferBackend("kvxfer"), kind)


def _publish(spec: Spec) -> Any:
    """The configuration that a launcher would give to this rank."""
    os.environ["SGLANG_HOST_IP"] = "127.0.0.1"
    os.environ.update(dict(spec.environment))
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    arguments = ServerArgs(
        model_path="dummy",
        device="cpu",
        host="127.0.0.1",
        page_size=spec.page_tokens,
        tp_size=spec.tp_size,
        disaggregation_mode=spec.role,
        disaggregation_transfer_backend="kvxfer",
        disaggregation_bootstrap_port=int(spec.bootstrap.rpartition(":")[2]),
        **dict(spec.options),
    )
    ranks = runtime_context.SpawnRanks(world_rank=spec.tp_rank, gpu_id=spec.tp_rank)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    # No process groups are built: the managers only keep this one.
    runtime_context.get_parallel().override_permanently(pp_group=None)
    return arguments


def serve(end: Connection, kind: type, argument: Any, log: str) -> None:
    """The process of a rank: answers calls until the pipe is closed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # multiprocessing has put the path of the test's process in place of that of this one.
    given = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.path += [each for each in given if each not in sys.path]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    target: Any = None
    try:
        target = kind(argument)
        end.send((True, None))
    except BaseException as error:
        traceback.print_exc()
        end.send((False, f"{type(error).__name__}: {error}"))
        os._exit(1)
    while True:
        try:
            name, arguments = end.recv()
        except EOFError:
            os._exit(0)
        if name == "leave":
            end.send((True, None))
            return  # as a process ends that nobody has closed anything in
        try:
            end.send((True, getattr(target, name)(*arguments)))
        except BaseException as error:
            traceback.print_exc()
            end.send((False, f"{type(error).__name__}: {error}"))
