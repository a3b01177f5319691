"""What the compiled module offers; ``import kvxfer`` has all of it that has no underscore.

Times are in seconds, sizes in bytes, addresses are integers. Any thread may call anything; what
waits does so without the GIL. Errors are those of ``kvxfer._errors``; a TypeError is an argument of
a type that the call does not take.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, TypedDict, final, overload, type_check_only

from typing_extensions import Buffer, Never, Self, TypeAlias, Unpack

from kvxfer._aio import Notifications

__version__: str

@type_check_only
class _Type(type):
    """That of all classes here is pybind11's: not to be mixed with classes of another, as ABC is."""

@type_check_only
class _Bound(metaclass=_Type): ...

@type_check_only
class _Given(_Bound):
    """What only calls return: a TypeError says so where it is constructed."""

    def __init__(self, given_by_calls_only: Never, /, *args: Never, **options: Never) -> None: ...

@type_check_only
class _Dlpack(Protocol):
    def __dlpack__(self) -> object: ...

@type_check_only
class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@type_check_only
class _Index(Protocol):
    def __index__(self) -> int: ...

_Tensor: TypeAlias = Buffer | _Dlpack | _CudaArray
"""Anything with the buffer protocol (bytearray, numpy, mmap, HostBuffer), DLPack (torch, JAX) or
``__cuda_array_interface__`` (CuPy), asked for in this order. No library is imported for it."""

_Ids: TypeAlias = Buffer | _Dlpack | Iterable[_Index]
"""Block ids from 0 to 2**32 - 1, in one dimension. A contiguous array of uint32 or int32 is read
where it lies, one of another integer type is converted in C++, of anything else each element costs
a step. Neither bytes nor str. Read during the call only."""

_Descriptors: TypeAlias = Buffer | _Dlpack | Iterable[tuple[int, int]] | _XferList
"""Rows of (address, bytes): an array of shape (N, 2) of int64 or uint64, with any strides, or
pairs. Read during the call only."""

@type_check_only
class _HasCudaStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CudaStreamProtocol(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

@type_check_only
class _HasCudaEvent(Protocol):
    @property
    def cuda_event(self) -> int: ...

_Stream: TypeAlias = _Index | _CudaStreamProtocol | _HasCudaStream
"""A CUDA stream: an object with ``__cuda_stream__`` (cuda.core, CuPy) or ``cuda_stream``
(torch.cuda.Stream), or a number as in the CUDA Array Interface: 1 is the legacy default stream, 2
that of the calling thread, any other a cudaStream_t. 0 is refused as a number, for it may be either;
of an object it is the legacy default stream."""

_Event: TypeAlias = _Index | _HasCudaEvent
"""A CUDA event that was recorded: an object with ``cuda_event`` (torch.cuda.Event), or a
cudaEvent_t as a number. Not 0."""

_Bytes: TypeAlias = bytes | bytearray | memoryview

_Access: TypeAlias = Literal["none", "read", "write", "read_write"]
_Kind: TypeAlias = Literal["host", "cuda"]
_Order: TypeAlias = Literal["posted", "any"]
_State: TypeAlias = Literal["active", "done", "failed", "cancelled", "deadline_exceeded"]
_Delivery: TypeAlias = Literal["none", "pending", "delivered", "not_delivered", "unknown"]
_EventKind: TypeAlias = Literal["notification", "transfer_end", "peer", "kv"]
_AgentEvent: TypeAlias = Notification | TransferEnd | PeerEvent | KvEvent
_Element: TypeAlias = Literal["bytes", "fp8_e4m3", "fp8_e5m2", "fp16", "bf16", "fp32"]

# --- Memory ---------------------------------------------------------------------------------------

class RawMemory(_Bound):
    """Memory by its address. Nothing keeps it alive and nothing looks whether it is there: it has
    to stay mapped until ``deregister_memory`` has returned or the agent is closed. What is unmapped
    before is a segmentation fault of the process, in whatever transfer touches it. Immutable."""

    def __init__(self, address: int, bytes: int, kind: _Kind = "host", device: int = 0) -> None:
        """``device``: the number of the CUDA device; 0 for host memory."""
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def kind(self) -> _Kind: ...
    @property
    def device(self) -> int: ...

class HostBuffer(_Bound):
    """Page-aligned, zeroed memory that processes on the same host can map: the fastest for them,
    ordinary memory for all others. Has the buffer protocol, as uint8 of one dimension:
    ``numpy.frombuffer(buffer, dtype=...)``. Unmapped when the last reference to it, to a view of it
    and to its registration is gone."""

    def __init__(self, bytes: int, pages: Literal["huge", "reserved", "small"] = "huge") -> None:
        """``pages``: "huge": transparent huge pages as far as the kernel has them; "reserved":
        those of vm.nr_hugepages, rounded up to whole ones; "small".

        InvalidArgument: no bytes. ResourceExhausted: memory, descriptors or reserved pages."""
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int:
        """In bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Region(_Given):
    """Registered memory, from ``Agent.register_memory``. As a context manager it is deregistered at
    the end, within 5 s (TimedOut: still in use, and registered). It keeps neither the agent
    nor the memory alive. Immutable."""

    @property
    def id(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def kind(self) -> _Kind: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class PagedRegion(_Bound):
    """Equal blocks at equal distances: block i has ``block_bytes`` bytes from ``base + i * stride``
    on, for ``i < count``. All of it lies within one registered region of its owner. Plain numbers,
    which keep nothing alive; they pickle, so that a peer can be told of them."""

    base: int
    """The address of block 0, in the address space of its owner."""
    block_bytes: int
    stride: int
    """From the start of one block to that of the next; at least ``block_bytes``."""
    count: int

    def __init__(self, base: int, block_bytes: int, stride: int, count: int) -> None: ...
    @staticmethod
    def of(tensor: _Tensor, axis: int = 0) -> PagedRegion:
        """The blocks of a tensor along ``axis`` (negative: from the end): a contiguous one of shape
        (4096, 2, 16, 128) has along 0 4,096 blocks of 2 * 16 * 128 elements.

        InvalidArgument: no such axis, or a block has gaps, as along axis 1 of that one."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]
    def __getstate__(self) -> tuple[int, int, int, int]: ...
    def __setstate__(self, state: tuple[int, int, int, int], /) -> None: ...

# --- Transfers ------------------------------------------------------------------------------------

@final
class TransferStats(_Given):
    """What a transfer has done, when it was asked for. Immutable."""

    @property
    def bytes(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def slices(self) -> int:
        """The pieces in which it was handed to the backend."""
    @property
    def queued(self) -> float:
        """Seconds from posting to the first slice handed to the backend."""
    @property
    def wire(self) -> float:
        """Seconds from the first slice to the end."""
    @property
    def total(self) -> float:
        """Seconds from posting to the end."""
    @property
    def path(self) -> str:
        """The backend that carried it, e.g. "tcp"."""

@final
class Transfer(_Given):
    """One write or read of many blocks, or a notification alone, from its posting to its one end.
    ``await`` it, ``wait`` for it, or ask ``done``. It goes on without being kept. It may outlive
    its agent, and then answers from its end."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the end, at most ``timeout`` seconds; None: until the end, which its
        deadline brings. Returns when it is done. Ctrl-C ends the wait, not the transfer.

        StillActive: ``timeout`` passed. Else the transfer's own end: PeerLost, DeadlineExceeded,
        Cancelled, FailedPrecondition (peer restarted, region gone), PermissionDenied, Internal."""
    def wait_quiet(self, timeout: float | None = None) -> None:
        """Blocks until it has ended, well or not, and no byte of it can land any more.

        TimedOut: ``timeout`` passed."""
    def done(self) -> bool:
        """It has ended, well or not. Never blocks."""
    @property
    def state(self) -> _State: ...
    @property
    def error(self) -> Exception | None:
        """What ``wait`` would raise at its end; None while active, and when done."""
    def cancel(self) -> None:
        """Asks for the end; does not wait. It ends as done where the target has all of it already,
        else as cancelled, within ``cancel_grace`` of the agent. Nothing, where it has ended."""
    def stream_wait(self, stream: _Stream) -> None:
        """What is put into that CUDA stream after this call begins when the transfer has ended,
        however it ended: ``error`` says so, also by then. Returns at once; no thread waits. Where it
        has ended already, nothing is put there.

        InvalidArgument: as ``Agent.write`` of streams. Closed: its agent is being closed."""
    @property
    def quarantined(self) -> bool:
        """It has ended, and bytes of it may still land: do not use the destination again yet."""
    @property
    def delivery(self) -> _Delivery:
        """What became of the notification at the target. "none": it has none; "unknown": the peer
        could not be asked."""
    @property
    def stats(self) -> TransferStats: ...
    @property
    def id(self) -> int:
        """Of its agent, rising; the target has it as ``Notification.transfer``."""
    @property
    def peer(self) -> str:
        """The target's name; of several, with commas."""
    def __await__(self) -> Generator[Any, None, None]:
        """As ``wait`` without a time-out, for a task of an asyncio loop. Cancelling the task does
        not cancel the transfer."""
    def _drive(self, seconds: float) -> bool:
        """Makes progress for at most so many seconds; whether it has ended. Never raises for that."""
    @property
    def _agent(self) -> Agent | None:
        """None: it is gone."""
    def _watch(self) -> bool:
        """For kvxfer._aio: its end comes in ``Agent._take_watched``, by its id. False: the agent is
        closed, or being closed. ResourceExhausted."""

@final
class TransferEnd(_Given):
    """The end of a transfer that was posted with a ``user_word``. From ``Agent.poll_events``.
    Immutable."""

    @property
    def user_word(self) -> int: ...
    @property
    def transfer(self) -> Transfer:
        """Another object for the same transfer, with the same ``id``; says how it ended."""

class ReadyFlag(_Bound):
    """A transfer posted with ``ready=flag`` sends nothing before ``flag.set()``. One flag may hold
    back several, and is kept alive by them. What is set stays set."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

# --- Being told -----------------------------------------------------------------------------------

@final
class Notification(_Given):
    """Handed out exactly once, after every byte of its transfer is visible here. Immutable."""

    @property
    def peer(self) -> str:
        """The name of the agent that posted the transfer."""
    @property
    def incarnation(self) -> str: ...
    @property
    def transfer(self) -> int:
        """``Transfer.id`` at that agent; of a request, a number of the part that came last."""
    @property
    def payload(self) -> bytes: ...
    @property
    def request(self) -> str:
        """The name of the request of ``write_blocks`` that is whole now; else empty."""
    @property
    def cache(self) -> str:
        """The KV cache of that request; else empty."""

@final
class PeerEvent(_Given):
    """Immutable."""

    @property
    def peer(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def kind(self) -> Literal["joined", "suspect", "lost", "back"]:
        """Its first connection is up; it has been silent for ``suspect_after``; its connection or
        process is gone; it was heard again."""
    @property
    def cause(self) -> Exception | None:
        """None for "joined" and "back"."""

@final
class PeerRegion(_Given):
    """A region that a peer offers: where blocks of a ``write`` or ``read`` may lie there. From
    ``Agent.regions``. Immutable."""

    @property
    def id(self) -> int:
        """As the peer counts them."""
    @property
    def address(self) -> int:
        """In the address space of the peer."""
    @property
    def bytes(self) -> int: ...
    @property
    def kind(self) -> _Kind: ...
    @property
    def device(self) -> int:
        """The peer's CUDA device; 0 for host memory."""
    @property
    def access(self) -> _Access: ...

@final
class RailExplanation(_Given):
    """One rail of a connection that is up. Immutable."""

    @property
    def name(self) -> str:
        """Empty: the backend has no word for it."""
    @property
    def up(self) -> bool: ...
    @property
    def bytes_per_second(self) -> float:
        """As measured lately, else the nominal rate."""
    @property
    def round_trip(self) -> float:
        """Seconds, of the probe that opened it; 0: there was none."""
    @property
    def down_for(self) -> float:
        """Seconds, while it is not up."""
    @property
    def why(self) -> str:
        """Why it is down, or was last; empty: it never was."""

@final
class PathExplanation(_Given):
    """One backend's answer to how it reaches a peer. Immutable."""

    @property
    def backend(self) -> str: ...
    @property
    def usable(self) -> bool: ...
    @property
    def chosen(self) -> bool:
        """It carries large transfers that name no backend."""
    @property
    def connected(self) -> bool: ...
    @property
    def rails(self) -> int: ...
    @property
    def each_rail(self) -> list[RailExplanation]:
        """While connected."""
    @property
    def bytes_per_second(self) -> float:
        """Of transfers in the last minute that kept the path busy; 0: there were none."""
    @property
    def latency(self) -> float:
        """Seconds, of small ones; 0: there were none."""
    @property
    def why(self) -> str:
        """Why it is not usable, or what the path is."""

@final
class Explanation(_Given):
    """How a peer is reached; ``str()`` of it is a few lines for a person. Immutable."""

    @property
    def peer(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def paths(self) -> list[PathExplanation]: ...

@final
class QuiesceResult(_Given):
    """Immutable."""

    @property
    def quiet(self) -> bool:
        """No byte of what was asked about can land any more."""
    @property
    def token(self) -> int:
        """For ``is_quiet``; 0 when quiet."""
    @property
    def pending(self) -> str:
        """Whom it waits for, for a person."""

# --- KV caches ------------------------------------------------------------------------------------

class KvModel(_Bound):
    """What both sides of a KV cache have in common (kvxfer/kv_layout.h)."""

    layers: int
    """Those with a cache."""
    heads: int
    """Of K and V; 1 for MLA."""
    k_size: int
    """Elements of K for one head and token, or of what K and V are fused to."""
    v_size: int
    """The same of V; 0: fused."""
    @property
    def element(self) -> _Element: ...
    @element.setter
    def element(self, name: _Element) -> None: ...
    fingerprint: int
    """Below 2**64: a hash of all else that must be the same for the bytes to mean the same."""

    def __init__(
        self,
        layers: int,
        heads: int,
        k_size: int,
        v_size: int,
        element: _Element = "bf16",
        fingerprint: int = 0,
    ) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

class KvShard(_Bound):
    """Which part of the model's cache one worker has: rank ``tp_rank`` of ``tp_size``, and
    ``layers`` layers from ``first_layer`` on."""

    layers: int
    tp_rank: int
    tp_size: int
    first_layer: int

    def __init__(
        self, layers: int, tp_rank: int = 0, tp_size: int = 1, first_layer: int = 0
    ) -> None: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

def ranks_to_read(
    model: KvModel, shard: KvShard, tp_size: int, stages: Sequence[int]
) -> list[int]:
    """The ranks of another instance that a worker with ``shard`` reads blocks from, ascending. The
    instance has ``tp_size`` ranks for each pipeline stage, ``stages`` are the first layers of those,
    and its ranks are numbered stage by stage: stage * tp_size + tp_rank. For the first rank of the
    first stage also those that nobody reads from, because it tells them so. InvalidArgument: a
    division that the model does not allow."""

def ranks_to_write(
    model: KvModel, shard: KvShard, tp_size: int, stages: Sequence[int]
) -> list[int]:
    """The ranks of another instance that this worker writes blocks to; may be none."""

class KvTensor(_Bound):
    """A tensor as frameworks describe it: a letter for each axis, outermost first, its shape, and
    its strides in elements. L: layer; 2: K, then V; B: block; N: token of the block; H: head; D:
    element of K or of V; C: the same of both, K first."""

    axes: str
    @property
    def shape(self) -> list[int]:
        """A copy; assign a whole one."""
    @shape.setter
    def shape(self, lengths: Sequence[int]) -> None: ...
    @property
    def strides(self) -> list[int]:
        """A copy; assign a whole one."""
    @strides.setter
    def strides(self, elements: Sequence[int]) -> None: ...
    def __init__(self, axes: str, shape: Sequence[int], strides: Sequence[int]) -> None: ...
    @staticmethod
    def of(tensor: _Tensor, axes: str) -> KvTensor:
        """Shape and strides of ``tensor``. InvalidArgument: a stride is negative or not of whole
        elements."""

@final
class KvLayout(_Given):
    """How a KV cache lies in the memory of one worker. Immutable."""

    @staticmethod
    def from_tensors(model: KvModel, shard: KvShard, tensors: Sequence[KvTensor]) -> KvLayout:
        """``tensors``: one with both K and V, or one of K and one of V; other layers are alike.

        InvalidArgument names the axis, and what it should be."""
    @property
    def model(self) -> KvModel:
        """A copy."""
    @property
    def shard(self) -> KvShard:
        """A copy."""
    @property
    def blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def tensors(self) -> int:
        """Of a layer, or of all where they share one: 1, or 2 with V in a tensor of its own."""
    @property
    def tensor_count(self) -> int:
        """In all: as many as ``register_kv_cache`` takes."""
    def tensor_bytes(self, tensor: int = 0) -> int:
        """From its first byte to behind the last one that is used. InvalidArgument: ``tensor`` is
        not below ``tensors``."""
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@final
class KvEvent(_Given):
    """Immutable."""

    @property
    def kind(self) -> Literal["lease_ended", "request_lost"]: ...
    @property
    def name(self) -> str:
        """Of the lease, or of the request."""
    @property
    def end(self) -> Literal["consumed", "released", "expired"]:
        """Of a lease; means nothing for a request."""
    @property
    def cache(self) -> str:
        """Of a request; else empty."""
    @property
    def why(self) -> str:
        """Why a request was given up, for a person."""

@final
class KvCounts(_Given):
    """Totals since the agent was made. Immutable."""

    @property
    def requests_whole(self) -> int:
        """Written to this agent."""
    @property
    def requests_lost(self) -> int:
        """Begun, and given up."""
    @property
    def leases_granted(self) -> int: ...
    @property
    def leases_consumed(self) -> int: ...
    @property
    def leases_released(self) -> int: ...
    @property
    def leases_expired(self) -> int: ...
    @property
    def fetches_refused(self) -> int:
        """Of peers, under leases that did not hold throughout."""
    @property
    def reads_waiting(self) -> int:
        """Of peers, now, for leases that are not granted (``lease_wait``)."""

# --- Options: fields of kvxfer/options.h, which says what each does and its default ---------------

@type_check_only
class _AgentOptions(TypedDict, total=False):
    backends: Sequence[str]
    plugin_path: Sequence[str]
    control: Literal["auto", "tcp", "rdma", "shm"]
    require_backends: Sequence[str]
    listen: str
    advertise: str
    serve_metadata: bool
    stripe_from: int
    heartbeat: float
    suspect_after: float
    connect_timeout: float
    cancel_grace: float
    kv_request_timeout: float
    max_notifications: int
    max_notification_bytes: int
    max_active_transfers: int
    spin: float
    staging_bytes: int
    copy_sms: int
    backend: Mapping[str, Mapping[str, str | float | bool | Sequence[str]]]

@final
class PreparedBlocks(_Given):
    """The blocks of one request at both sides, made by ``Agent.prepare_blocks`` for
    ``Agent.write_layers``. Threads may share it. It keeps one copy of the ids, however many layers
    are written, and may outlive its agent. Immutable."""

# --- The agent ------------------------------------------------------------------------------------

class Agent(_Bound):
    """Registers memory, knows peers, moves blocks, tells and is told. One per worker; several in a
    process are independent.

    As a context manager it is closed at the end. One that nobody closed is closed when its last
    reference goes, or at the exit of the interpreter. Calls on a closed agent raise Closed, but for
    ``name``, ``closed`` and ``close``. In a forked child calls on the parent's agents raise
    FailedPrecondition, those that poll return None, and ``close`` lets go of them without touching
    what is the parent's."""

    def __init__(
        self, name: str = "", *, environment: bool = True, **options: Unpack[_AgentOptions]
    ) -> None:
        """``name``: how peers call it, 1 to 255 bytes; unique among those that exchange metadata.
        ``options``: fields of AgentOptions (kvxfer/options.h), durations in seconds. What is not
        given comes from the environment (``KVXFER_*``), or with ``environment=False`` is the
        default.

        TypeError: no such option, or a value not of its type. InvalidArgument: a value, or a
        variable of the environment, and what was expected. NotFound and others: a backend that was
        named, and why it cannot be used here."""
    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> str:
        """32 hexadecimal digits, of this agent alone: the next one of the same name has others."""
    @property
    def listen_address(self) -> str:
        """Where tcp listens, "host:port"; empty without tcp."""
    @property
    def closed(self) -> bool: ...

    # Memory

    def register_memory(
        self, memory: _Tensor | RawMemory, access: _Access = "read_write"
    ) -> Region:
        """Memory for transfers; ``access`` is what peers may do with it. It is kept alive until it
        is deregistered or the agent is closed. A bytearray cannot be resized until then
        (BufferError); after a tensor's storage was let go of, the next transfer of the agent is
        refused. Regions may overlap. Peers learn of it by metadata that is taken afterwards.

        CUDA memory is that of the device that its object names (``device``), else of device 0. It
        does not wait for any stream: that is what ``stream`` of a transfer is for.

        InvalidArgument: no bytes, gaps, read-only, memory that no backend takes. BufferError: what
        the tensor's library says where it has no DLPack for it. ResourceExhausted."""
    def deregister_memory(self, region: Region | int, timeout: float = 5.0) -> None:
        """Refuses new operations on it, waits until no transfer can touch it, and lets go of it.

        TimedOut: still in use, and registered. NotFound: not registered.
        FailedPrecondition: a KV cache lies in it, or another thread deregisters it."""
    def _register_rows(self, rows: Buffer | _Dlpack, kind: Literal["host", "cuda"]) -> list[int]:
        """For kvxfer.compat.nixl: all ranges of an array (N, 3) of (address, bytes, device), or
        none, as so many RawMemory; the ids of their regions. As register_memory."""
    def _deregister_ids(self, ids: list[int], timeout: float) -> tuple[list[int], str]:
        """For kvxfer.compat.nixl: forgets those regions, but for the ones that are still in use
        after ``timeout`` seconds, which are returned with the reason. NotFound, and none is
        forgotten: one is not registered."""

    # Peers

    def metadata(self) -> bytes:
        """What a peer must know to reach this agent and its regions. Take it again when these have
        changed."""
    def add_peer(self, metadata: _Bytes) -> str:
        """Makes the agent of that metadata known, or brings it up to date; its name. Does not
        connect. Another incarnation replaces the one before, whose transfers fail.

        InvalidArgument: not metadata, damaged, one's own, or of loopback on another host.
        FailedPrecondition: no version in common, or none of ``require_backends`` reaches it."""
    def remove_peer(self, peer: str) -> None:
        """Forgets it; transfers to it end as cancelled. Does not wait. The connections that it made
        here are closed too, and what it has in progress here fails: ``quiesce`` says when no byte of
        it can land. It may connect again. NotFound: neither added nor connected."""
    def explain(self, peer: str) -> Explanation:
        """Which backend and rails reach it, and why not the others. NotFound."""
    def regions(self, peer: str) -> list[PeerRegion]:
        """What the peer offers: the regions in its metadata, as ``add_peer`` was given it last, that
        grant some access; by address. Asks nobody. NotFound."""
    def poll_peer_event(self) -> PeerEvent | None:
        """The next event of any peer, oldest first. At most 1,024 are kept; the oldest goes
        first."""

    # Transfers

    @overload
    def write(
        self,
        peer: str,
        local: _Descriptors,
        remote: _Descriptors,
        local_ids: None = None,
        remote_ids: None = None,
        *,
        notification: _Bytes | None = None,
        order: _Order = "posted",
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """Local memory into the peer's. Never blocks on the network.

        Without ids: ``local[i]`` goes to ``remote[i]``; as many, and pairwise of as many bytes.
        With ids: for each pair of ``local[p]`` and ``remote[p]`` block ``local_ids[i]`` goes to
        block ``remote_ids[i]``; as many regions, pairwise of equal ``block_bytes``, and as many
        ids. Ids may be a CUDA tensor of int32 or uint32 without gaps, in memory of this agent that
        is registered, on the GPU whose memory is moved: the GPU reads them while it copies, after
        ``stream``. They are kept alive; their content stays as it is until the transfer has ended
        and is quiet. An id out of range
        there fails the transfer; ids that occur twice are not noticed. Only over cuda_ipc.

        ``notification``: at most 64 KiB, handed out at the target after every byte: in ``order``
        "posted" after those before it of this agent, in "any" as soon as its own bytes are there.
        ``deadline``: seconds from now to the end, which comes within 10 % of it; at most a year.
        ``priority``: higher goes first among the transfers to this peer. ``backend``: this one, or
        failure. ``ready``: nothing is sent before it is set.

        ``stream``: nothing of the local memory is touched before what is in that CUDA stream at the
        time of the call is over; of a default stream given as a number, that of the thread's
        current device. ``event``: the same, for one that was recorded before; it is kept alive
        until the end, and not recorded anew before that. Both may be given; neither waits. Where
        the work there fails, the transfer does.

        ``user_word``, below 2**64: its end is a TransferEnd with this word (``poll_events``). The
        place for it is taken now; ResourceExhausted while 65,536 are.

        InvalidArgument: no blocks, unequal lists, an id out of range, memory that is not within one
        registered region or was let go of, destinations that overlap, a stream or an event that
        is none, of another context than its device's primary one, or being captured into a graph.
        NotFound: unknown peer. PermissionDenied: the region does not allow it. ResourceExhausted:
        too much is queued. Unimplemented: a stream or an event, and no CUDA here."""
    @overload
    def write(
        self,
        peer: str,
        local: PagedRegion | Sequence[PagedRegion],
        remote: PagedRegion | Sequence[PagedRegion],
        local_ids: _Ids,
        remote_ids: _Ids,
        *,
        notification: _Bytes | None = None,
        order: _Order = "posted",
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer: ...
    @overload
    def read(
        self,
        peer: str,
        local: _Descriptors,
        remote: _Descriptors,
        local_ids: None = None,
        remote_ids: None = None,
        *,
        notification: _Bytes | None = None,
        order: _Order = "posted",
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """The peer's memory into local memory; else as ``write``. A notification tells the peer
        that all bytes were read, and that it may use the source again."""
    @overload
    def read(
        self,
        peer: str,
        local: PagedRegion | Sequence[PagedRegion],
        remote: PagedRegion | Sequence[PagedRegion],
        local_ids: _Ids,
        remote_ids: _Ids,
        *,
        notification: _Bytes | None = None,
        order: _Order = "posted",
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer: ...
    def notify(
        self,
        peer: str,
        payload: _Bytes,
        *,
        order: _Order = "posted",
        deadline: float = 30.0,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """A notification alone, of at most 64 KiB. As ``write``."""

    # Being told

    def poll_events(
        self, kinds: Sequence[_EventKind] | None = None, limit: int = 1024
    ) -> list[_AgentEvent]:
        """What the agent has to tell, of these kinds (None: of all), at most ``limit``, in the order
        in which it came; makes progress if there is nothing. Never blocks. What is not asked for
        stays. Each event goes to one call, of this one and of the ``poll_`` calls for one kind.

        InvalidArgument: an unknown kind, or none."""
    def wait_events(
        self,
        timeout: float | None = None,
        kinds: Sequence[_EventKind] | None = None,
        limit: int = 1024,
    ) -> list[_AgentEvent]:
        """As ``poll_events``, but waits until there is one; None waits for ever. Ctrl-C ends the
        wait.

        TimedOut: ``timeout`` seconds passed. Closed: the agent was closed meanwhile."""
    def event_fd(self, kinds: Sequence[_EventKind] | None = None) -> int:
        """Readable while events of these kinds wait, for select, poll and epoll. It is the agent's:
        neither read nor close it. When it fires, poll until there are none. A duplicate becomes
        readable for good when the agent is closed. ResourceExhausted: no descriptors are left."""
    @property
    def _watched_fd(self) -> int:
        """For kvxfer._aio: as ``event_fd``, of what ``_take_watched`` returns."""
    def _take_watched(self) -> list[int]:
        """The ids of transfers that ``Transfer._watch`` was called for and that have ended."""
    def poll_notification(self) -> Notification | None:
        """The next one, if it is there. Never blocks."""
    def poll_notifications(self, limit: int = 1024) -> list[Notification]:
        """Those that are there, at most ``limit``, in order. Never blocks."""
    def wait_notification(self, timeout: float | None = None) -> Notification:
        """The next one; None waits for ever. Ctrl-C ends the wait.

        TimedOut: ``timeout`` seconds passed. Closed: the agent was closed meanwhile."""
    @property
    def notification_fd(self) -> int:
        """Readable while notifications wait, for select, poll and epoll. It is the agent's: neither
        read nor close it. When it fires, poll until there are none. -1 in a forked child."""
    def notifications(self) -> Notifications:
        """``async for`` over them, in a task of an asyncio loop, until the agent is closed."""

    # Quiet

    def quiesce(
        self, peer: str = "", regions: Sequence[Region | int] = (), timeout: float = 5.0
    ) -> QuiesceResult:
        """Waits until every transfer of ``peer`` (empty: of all) that touches one of ``regions``
        (empty: any) and began before has ended at both sides. Where ``timeout`` passes the result
        says what is open, and has a token for ``is_quiet``. Ctrl-C and ``close`` wait for its
        end."""
    def is_quiet(self, token: int) -> bool:
        """Whether what the token names is quiet now. NotFound: unknown, or answered True before."""

    # KV caches

    def register_kv_cache(
        self, name: str, layout: KvLayout, tensors: Sequence[_Tensor | int]
    ) -> None:
        """Makes tensors, by object or by address, one KV cache that peers know by name and layout:
        ``layout.tensor_count`` of them, layer by layer. Each lies within one registered region;
        that keeps it alive, the cache does not.

        InvalidArgument: tensors that are not those of the layout, overlap, or lie in no region.
        AlreadyExists: the name. ResourceExhausted: there are 64."""
    def deregister_kv_cache(self, name: str) -> None:
        """Its regions can be deregistered afterwards. NotFound."""
    def write_blocks(
        self,
        group: Sequence[str],
        cache: str,
        local_ids: _Ids,
        remote_ids: _Ids,
        tokens: int,
        *,
        local_first_token: int = 0,
        remote_first_token: int = 0,
        first_layer: int = 0,
        layers: int | None = None,
        request: str = "",
        notification: _Bytes | None = None,
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """What of a request this worker has and the group needs, into the group's caches: one
        transfer, done when all of it is there.

        ``group``: the names of all ranks of the other instance. Ids: blocks of the request, in the
        order of its tokens. ``local_first_token``, ``remote_first_token``: where its ``tokens``
        begin, counted through from the first of these blocks on. ``first_layer``, ``layers`` (None:
        all from there on): of the model. ``request``: a name for one attempt; each rank is told,
        with ``notification`` of at most 32 KiB, when all of it is there.

        InvalidArgument: the group is not every rank of one instance of this model, once; ids or
        layers out of range. NotFound: peer or cache. FailedPrecondition: a rank does not take it,
        and why. Else as ``write``."""
    def prepare_blocks(
        self,
        group: Sequence[str],
        cache: str,
        local_ids: _Ids,
        remote_ids: _Ids,
        tokens: int,
        *,
        local_first_token: int = 0,
        remote_first_token: int = 0,
        first_layer: int = 0,
        layers: int | None = None,
    ) -> PreparedBlocks:
        """Looks up the group and its caches, checks the ids and computes where their bytes go, once
        for all layers that ``write_layers`` then writes. Posts nothing. Arguments and errors as for
        ``write_blocks``; ``first_layer`` and ``layers`` bound the layers that may be written."""
    def write_layers(
        self,
        blocks: PreparedBlocks,
        first_layer: int,
        layers: int | None = 1,
        *,
        request: str = "",
        notification: _Bytes | None = None,
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        ready: ReadyFlag | None = None,
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """The same as ``write_blocks`` of these layers (None: all prepared ones from ``first_layer``
        on), at a cost that does not depend on the number of blocks. The thread that makes progress
        sends.

        InvalidArgument: blocks of another agent, or layers that were not prepared. NotFound: a peer
        was removed, or a cache was deregistered. FailedPrecondition: a peer restarted, or a cache
        was registered anew. Nothing is written then: prepare the blocks again. Else as
        ``write_blocks``."""
    def read_blocks(
        self,
        group: Sequence[str],
        cache: str,
        local_ids: _Ids,
        remote_ids: _Ids,
        tokens: int,
        *,
        local_first_token: int = 0,
        remote_first_token: int = 0,
        first_layer: int = 0,
        layers: int | None = None,
        lease: str = "",
        lease_contents: str = "",
        lease_wait: float = 0.0,
        stages: Sequence[int] = (),
        notification: _Bytes | None = None,
        deadline: float = 30.0,
        priority: int = 0,
        backend: str = "",
        stream: _Stream | None = None,
        event: _Event | None = None,
        user_word: int | None = None,
    ) -> Transfer:
        """What this worker needs of a request, out of the group's caches; else as ``write_blocks``.

        ``lease``: it is done only when each owner has confirmed that this held throughout; else it
        fails with LeaseRefused. ``lease_contents``: what the blocks must hold, as each owner has
        said it to ``lease_blocks``. ``lease_wait``: an owner that has not granted the lease yet
        answers when it has, or after so many seconds at the latest; 0: at once.
        ``stages``: the first layer of each pipeline stage of this worker's instance, from which an
        owner learns how many workers fetch from it; empty: there is one stage."""
    def wait_layers(self, cache: str, request: str, layers: int, timeout: float) -> None:
        """Blocks until the first ``layers`` layers of this worker are there, of a request that
        peers write.

        TimedOut: ``timeout`` seconds passed; says what is missing. Aborted: the request was
        given up. NotFound: the cache. InvalidArgument: more layers than it has."""
    def drop_request(self, cache: str, request: str) -> None:
        """Gives up a request that peers write: what still comes of it is refused. NotFound: the
        cache. FailedPrecondition: it is whole."""
    def lease_blocks(
        self, cache: str, lease: str, ids: _Ids, hold: float, contents: str = ""
    ) -> None:
        """Holds blocks for peers that fetch them by ``read_blocks``: for ``hold`` seconds, unless
        all have before. They may be used for other things when ``poll_kv_event`` has told of its
        end. ``contents``: what the blocks hold, such as a hash of the prompt; a reader must say the
        same (``lease_contents``). Readers that wait for the lease are answered.

        AlreadyExists: the name was used before. InvalidArgument. NotFound. ResourceExhausted."""
    def renew_lease(self, lease: str, hold: float) -> None:
        """For ``hold`` seconds from now on, where that is longer. NotFound: never granted.
        FailedPrecondition: it has ended, and how."""
    def release_lease(self, lease: str) -> None:
        """No further fetch begins; it ends when those that have begun have. As ``renew_lease``."""
    def revoke_lease(self, lease: str) -> None:
        """Ends it now: on return its blocks may be used for other things. Fetches that have begun
        fail with LeaseRefused ("ended"), even those that have read their last byte. As
        ``renew_lease``."""
    def poll_kv_event(self) -> KvEvent | None:
        """The next lease that has ended or request that was lost, oldest first."""
    def count_kv(self) -> KvCounts: ...

    # The end

    def drain(self, deadline: float) -> None:
        """Takes no new work, waits up to ``deadline`` seconds until every lease and transfer has
        ended, and closes, whatever came of it. ``renew_lease`` works meanwhile.

        TimedOut: what was left; it is closed all the same. Closed: another thread did."""
    def close(self) -> None:
        """Ends every transfer as cancelled, and lets go of connections and memory. Wakes what waits
        in other threads, and returns when they have left. Idempotent."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

def fetch_metadata(address: str, timeout: float = 5.0) -> bytes:
    """The metadata of the agent whose tcp listens at ``address`` ("host:port", "[v6]:port"), as it
    is now: for ``add_peer``. That agent was made with ``serve_metadata=True``. Needs no agent here.
    Ctrl-C ends it. A host name is resolved within the resolver's own time-outs. It holds no GIL while
    it waits: in a coroutine, ``await asyncio.to_thread(kvxfer.fetch_metadata, address)``.

    PeerLost: nobody listens there, no route, or it is closing; try again. DeadlineExceeded: no
    connection, or no whole answer, within ``timeout`` seconds. FailedPrecondition: it does not hand
    out its metadata, or has another version. InvalidArgument: a bad address. Internal: the answer
    is damaged, or no agent's."""

def set_log_level(level: Literal["debug", "info", "warning", "error", "off"]) -> None:
    """What of the library's log goes to stderr, for all agents of the process; by default "warning"
    and what is worse."""

# --- Of the package itself ------------------------------------------------------------------------

class _XferList(_Bound):
    """For kvxfer.compat.nixl: descriptors, picked from by index without a Python object an element.
    Immutable."""

    def __init__(self, rows: Buffer | _Dlpack) -> None:
        """``rows``: an array (N, 3) of (address, bytes, device) or (N, 5) of (address, bytes,
        device, stride, count), of int64 or uint64; it is copied. InvalidArgument."""
    def __len__(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    def pick(self, indices: _Ids) -> _XferList:
        """Those at ``indices``, in that order. InvalidArgument names the first out of range."""
    @staticmethod
    def merge(local: _XferList, remote: _XferList) -> tuple[_XferList, _XferList]:
        """Both, with neighbours that meet on both sides made one. InvalidArgument: unequal
        lengths."""

def copy_blocks(destination: _Descriptors, source: _Descriptors) -> None:
    """Copies within this process, without the GIL. Nothing looks whether the memory is there.
    InvalidArgument: unequal lengths, or blocks of unequal bytes."""
