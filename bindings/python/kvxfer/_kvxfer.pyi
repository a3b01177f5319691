"""What the compiled module offers; ``import kvxfer`` has all of it."""

from collections.abc import Awaitable, Buffer, Generator, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, overload

from kvxfer._aio import Notifications

__version__: str

class _DLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

Memory = Buffer | _DLPack | _CudaArray | "HostBuffer" | "RawMemory"
"""Contiguous memory: anything with the buffer protocol (bytearray, numpy, mmap), DLPack (torch) or
``__cuda_array_interface__``."""

Integers = Buffer | _DLPack | Sequence[int]
"""One-dimensional, of any integer type. An array is read as it is; a list costs a step an element."""

Descriptors = Buffer | _DLPack | Sequence[tuple[int, int]]
"""N rows of (address, bytes): an array of shape (N, 2) of int64 or uint64, or a list of pairs."""

AccessName = Literal["none", "read", "write", "read_write"]
MemoryKindName = Literal["host", "cuda"]
OrderName = Literal["posted", "any"]
StateName = Literal["active", "done", "failed", "cancelled", "deadline_exceeded"]
DeliveryName = Literal["none", "pending", "delivered", "not_delivered", "unknown"]

class RawMemory:
    """Memory by its address, which the caller keeps mapped until the region is deregistered."""

    def __init__(self, address: int, bytes: int, kind: MemoryKindName = "host", device: int = 0) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def kind(self) -> MemoryKindName: ...
    @property
    def device(self) -> int: ...

class HostBuffer:
    """Page-aligned, zeroed memory that peers on the same host can map: the fastest for them.

    Has the buffer protocol: ``numpy.frombuffer(buffer, dtype=...)``."""

    def __init__(self, bytes: int, pages: Literal["huge", "reserved", "small"] = "huge") -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Region:
    """Registered memory. As a context manager it is deregistered at the end."""

    @property
    def id(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def kind(self) -> MemoryKindName: ...
    def __enter__(self) -> Region: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

class PagedRegion:
    """Equal blocks at equal distances: block i covers ``block_bytes`` bytes from
    ``base + i * stride``, for ``i < count``; all in bytes."""

    def __init__(self, base: int, block_bytes: int, stride: int, count: int) -> None: ...
    @staticmethod
    def of(tensor: Memory, axis: int = 0) -> PagedRegion:
        """The blocks of a tensor along ``axis``, each of them contiguous.

        InvalidArgument: a block has gaps."""
    base: int
    block_bytes: int
    stride: int
    count: int

class TransferStats:
    bytes: int
    blocks: int
    slices: int
    queued: float
    """Seconds from posting to the first slice handed to the backend."""
    wire: float
    """Seconds from the first slice to the end."""
    total: float
    """Seconds from posting to the end."""
    path: str
    """The backend that carried it, e.g. "tcp"."""

class Transfer:
    """One write or read of many blocks, from its posting to its one end. ``await`` it, ``wait`` for
    it, or ask ``done``. Any thread; may outlive its agent."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the end, without the GIL; at most ``timeout`` seconds (None: until the end,
        which its deadline brings). Returns when done.

        StillActive: the time-out passed. Else the transfer's own end: PeerLost, DeadlineExceeded,
        Cancelled, FailedPrecondition, PermissionDenied, Internal."""
    def wait_quiet(self, timeout: float | None = None) -> None:
        """Blocks until it has ended and the target's memory is quiet."""
    def done(self) -> bool:
        """It has ended, well or not. Never blocks."""
    @property
    def state(self) -> StateName: ...
    @property
    def error(self) -> Exception | None:
        """What ``wait`` would raise; None while active and when done."""
    def cancel(self) -> None: ...
    @property
    def quarantined(self) -> bool: ...
    @property
    def delivery(self) -> DeliveryName:
        """What became of the notification at the target."""
    @property
    def stats(self) -> TransferStats: ...
    @property
    def id(self) -> int: ...
    @property
    def peer(self) -> str: ...
    def __await__(self) -> Generator[Any, None, None]: ...

class ReadyFlag:
    """A transfer posted with ``ready=flag`` sends nothing before ``flag.set()``. One flag may hold
    back several; it lives as long as they do."""

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def is_set(self) -> bool: ...

class Notification:
    peer: str
    incarnation: str
    transfer: int
    payload: bytes
    request: str
    cache: str

class PeerEvent:
    peer: str
    incarnation: str
    kind: Literal["joined", "suspect", "lost", "back"]
    cause: Exception | None

class RailExplanation:
    name: str
    up: bool
    bytes_per_second: float
    round_trip: float
    down_for: float
    why: str

class PathExplanation:
    backend: str
    usable: bool
    chosen: bool
    connected: bool
    rails: int
    each_rail: list[RailExplanation]
    bytes_per_second: float
    latency: float
    why: str

class Explanation:
    peer: str
    incarnation: str
    host: str
    paths: list[PathExplanation]

class QuiesceResult:
    quiet: bool
    token: int
    pending: str

class KvModel:
    """What both sides of a KV cache have in common; see kvxfer/kv_layout.h."""

    def __init__(self, layers: int, heads: int, k_size: int, v_size: int, element: str = "bf16", fingerprint: int = 0) -> None: ...
    layers: int
    heads: int
    k_size: int
    v_size: int
    element: str
    """One of bytes, fp8_e4m3, fp8_e5m2, fp16, bf16, fp32."""
    fingerprint: int

class KvShard:
    def __init__(self, layers: int, tp_rank: int = 0, tp_size: int = 1, first_layer: int = 0) -> None: ...
    layers: int
    tp_rank: int
    tp_size: int
    first_layer: int

class KvTensor:
    """A tensor as frameworks describe it: a letter for each axis, outermost first (L, 2, B, N, H,
    D, C), shape, and strides in elements."""

    def __init__(self, axes: str, shape: Sequence[int], strides: Sequence[int]) -> None: ...
    @staticmethod
    def of(tensor: Memory, axes: str) -> KvTensor: ...
    axes: str
    shape: list[int]
    strides: list[int]

class KvLayout:
    @staticmethod
    def from_tensors(model: KvModel, shard: KvShard, tensors: Sequence[KvTensor]) -> KvLayout: ...
    @property
    def model(self) -> KvModel: ...
    @property
    def shard(self) -> KvShard: ...
    @property
    def blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def tensors(self) -> int: ...
    @property
    def tensor_count(self) -> int: ...
    def tensor_bytes(self, tensor: int = 0) -> int: ...

class KvEvent:
    kind: Literal["lease_ended", "request_lost"]
    name: str
    end: Literal["consumed", "released", "expired"]
    cache: str
    why: str

class KvCounts:
    requests_whole: int
    requests_lost: int
    leases_granted: int
    leases_consumed: int
    leases_released: int
    leases_expired: int
    fetches_refused: int

class Agent:
    """Registers memory, knows peers, moves blocks, tells and is told. One per worker; several in a
    process are independent. Any thread may call; what waits does so without the GIL.

    ``name``: how peers call this agent, unique among those that exchange metadata. ``options``: the
    fields of ``AgentOptions`` (kvxfer/options.h) by name, durations in seconds, with
    ``verbs``/``ucx``/``libfabric``/``faults`` as dicts; what is not given comes from the
    environment (``KVXFER_*``), where ``environment`` is true.

    As a context manager it is closed at the end. An agent that is not closed is closed when the
    interpreter exits. After a fork the child's calls raise FailedPrecondition."""

    def __init__(self, name: str = "", *, environment: bool = True, **options: Any) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def listen_address(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def register_memory(self, memory: Memory, access: AccessName = "read_write") -> Region: ...
    def deregister_memory(self, region: Region | int, timeout: float = 5.0) -> None: ...
    def metadata(self) -> bytes: ...
    def add_peer(self, metadata: bytes) -> str: ...
    def remove_peer(self, peer: str) -> None: ...
    def explain(self, peer: str) -> Explanation: ...
    def poll_peer_event(self) -> PeerEvent | None: ...
    @overload
    def write(self, peer: str, local: Descriptors, remote: Descriptors, *, notification: bytes | None = None, order: OrderName = "posted", deadline: float = 30.0, priority: int = 0, backend: str = "", ready: ReadyFlag | None = None) -> Transfer: ...
    @overload
    def write(self, peer: str, local: PagedRegion | Sequence[PagedRegion], remote: PagedRegion | Sequence[PagedRegion], local_ids: Integers, remote_ids: Integers, *, notification: bytes | None = None, order: OrderName = "posted", deadline: float = 30.0, priority: int = 0, backend: str = "", ready: ReadyFlag | None = None) -> Transfer: ...
    def read(self, *args: Any, **kwargs: Any) -> Transfer: ...
    def notify(self, peer: str, payload: bytes, *, order: OrderName = "posted", deadline: float = 30.0) -> Transfer: ...
    def poll_notification(self) -> Notification | None: ...
    def poll_notifications(self, limit: int = 1024) -> list[Notification]: ...
    def wait_notification(self, timeout: float | None = None) -> Notification: ...
    @property
    def notification_fd(self) -> int: ...
    def notifications(self) -> Notifications: ...
    def quiesce(self, peer: str = "", regions: Sequence[Region | int] = (), timeout: float = 5.0) -> QuiesceResult: ...
    def is_quiet(self, token: int) -> bool: ...
    def register_kv_cache(self, name: str, layout: KvLayout, tensors: Sequence[Memory | int]) -> None: ...
    def deregister_kv_cache(self, name: str) -> None: ...
    def write_blocks(self, group: Sequence[str], cache: str, local_ids: Integers, remote_ids: Integers, tokens: int, *, local_first_token: int = 0, remote_first_token: int = 0, first_layer: int = 0, layers: int | None = None, request: str = "", notification: bytes | None = None, deadline: float = 30.0, priority: int = 0, backend: str = "", ready: ReadyFlag | None = None) -> Transfer: ...
    def read_blocks(self, group: Sequence[str], cache: str, local_ids: Integers, remote_ids: Integers, tokens: int, *, local_first_token: int = 0, remote_first_token: int = 0, first_layer: int = 0, layers: int | None = None, lease: str = "", lease_readers: int = 0, notification: bytes | None = None, deadline: float = 30.0, priority: int = 0, backend: str = "") -> Transfer: ...
    def wait_layers(self, cache: str, request: str, layers: int, timeout: float) -> None: ...
    def drop_request(self, cache: str, request: str) -> None: ...
    def lease_blocks(self, cache: str, lease: str, ids: Integers, hold: float) -> None: ...
    def renew_lease(self, lease: str, hold: float) -> None: ...
    def release_lease(self, lease: str) -> None: ...
    def poll_kv_event(self) -> KvEvent | None: ...
    def count_kv(self) -> KvCounts: ...
    def drain(self, deadline: float) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Agent: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

class _XferList:
    """For kvxfer.compat.nixl: descriptors of (address, bytes), picked from by index without a Python
    object an element. Immutable."""

    def __init__(self, rows: Buffer) -> None:
        """``rows``: (N, 3) of (address, bytes, device) or (N, 5) of (address, bytes, device, stride,
        count), uint64 or int64, contiguous. InvalidArgument."""
    def __len__(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    def pick(self, indices: Integers) -> _XferList:
        """Those at ``indices``, in that order. InvalidArgument names the first that is out of range."""
    @staticmethod
    def merge(local: _XferList, remote: _XferList) -> tuple[_XferList, _XferList]:
        """Both with neighbours that are adjacent on both sides made one."""

# Agent.write and Agent.read take an _XferList wherever they take Descriptors.

def set_log_level(level: Literal["debug", "info", "warning", "error", "off"]) -> None: ...
def copy_blocks(destination: Descriptors | _XferList, source: Descriptors | _XferList) -> None:
    """Copies within this process, without the GIL; equal lengths. InvalidArgument."""
