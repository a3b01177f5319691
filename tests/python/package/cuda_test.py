"""GPU memory: what is registered, by which path blocks go, and what is refused."""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import kvxfer
import numpy as np
import pytest
from cuda_standin import CudaArray, CudaMemory, CudaTensor, hooks, needs_standin
from pairs import environment, know, name, pair

pytestmark = needs_standin

BLOCKS, BLOCK = 64, 4096
IDS, THEIRS = [3, 1, 60, 7], [0, 2, 1, 63]
# What reaches GPU memory by itself, and what it is staged over.
PATHS = {
    "cuda_ipc": (["cuda_ipc", "tcp"], "cuda_ipc"),
    "tcp": (["tcp"], "tcp staged"),
    "shm": (["shm", "tcp"], "shm staged"),
}


@pytest.fixture(autouse=True)
def _no_default_stream() -> Any:
    """Which would wait for the whole of the application, and it for kvxfer."""
    before = hooks().kvxfer_standin_default_stream_uses()
    yield
    assert hooks().kvxfer_standin_default_stream_uses() == before


class Rig:
    """Each agent has blocks in memory of a GPU; those of the left have content."""

    def __init__(
        self, left: kvxfer.Agent, right: kvxfer.Agent, ours: Any = None, theirs: Any = None
    ) -> None:
        self.left, self.right = left, right
        self.ours = CudaArray((BLOCKS, BLOCK)) if ours is None else ours
        self.theirs = CudaArray((BLOCKS, BLOCK)) if theirs is None else theirs
        content(self.ours)[:] = _noise()
        self.region = left.register_memory(self.ours)
        right.register_memory(self.theirs)
        know(left, right)

    def write(self, **options: Any) -> kvxfer.Transfer:
        return self.left.write(self.right.name, *self._regions(), IDS, THEIRS, **options)

    def read(self, **options: Any) -> kvxfer.Transfer:
        ours, theirs = self._regions()
        return self.right.read(self.left.name, theirs, ours, THEIRS, IDS, **options)

    def landed(self) -> bool:
        """These blocks and no others."""
        expected = np.zeros_like(content(self.theirs))
        expected[THEIRS] = content(self.ours)[IDS]
        return np.array_equal(content(self.theirs), expected)

    def _regions(self) -> tuple[kvxfer.PagedRegion, kvxfer.PagedRegion]:
        return kvxfer.PagedRegion.of(self.ours), kvxfer.PagedRegion.of(self.theirs)


def content(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.content()


def _noise() -> np.ndarray:
    return np.random.default_rng(5).integers(1, 256, (BLOCKS, BLOCK), np.uint8)


# --- What is registered ---------------------------------------------------------------------------


def test_an_array_by_its_interface() -> None:
    with kvxfer.Agent(name("one")) as agent:
        array = CudaArray((4, 8), np.float32)
        region = agent.register_memory(array)
        assert (region.kind, region.address, region.bytes) == ("cuda", array.address, 128)
        assert kvxfer.PagedRegion.of(array) == kvxfer.PagedRegion(array.address, 32, 32, 4)
        assert kvxfer.KvTensor.of(array, "BC").shape == [4, 8]


def test_an_array_is_kept_alive_until_it_is_deregistered() -> None:
    with pair() as (left, right):
        rig = Rig(left, right, theirs=CudaArray((BLOCKS, BLOCK)))
        ours, expected = rig.ours.address, content(rig.ours)[3].copy()
        rig.ours = None
        left.write(right.name, [(ours + 3 * BLOCK, BLOCK)], [(rig.theirs.address, BLOCK)]).wait(20)
        assert (content(rig.theirs)[0] == expected).all()


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("says", ["id", "index", "device_id", "number"])
def test_the_device_that_it_says(device: int, says: str) -> None:
    """As CuPy, torch and cuda.core do, and as a number."""
    with kvxfer.Agent(name("devices")) as agent:
        array = CudaArray((16,), device=device)
        array.device = device if says == "number" else SimpleNamespace(**{says: device})
        agent.register_memory(array)
        array.device = 1 - device if says == "number" else SimpleNamespace(**{says: 1 - device})
        with pytest.raises(
            kvxfer.InvalidArgument, match=f"memory of GPU {device}, not of GPU {1 - device}"
        ):
            agent.register_memory(array)


def test_an_array_that_says_no_device() -> None:
    """As Numba's: that of device 0, or named by RawMemory."""
    with kvxfer.Agent(name("devices")) as agent:
        for device in (0, 1):
            array = CudaArray((16,), device=device)
            del array.device
            if device == 0:
                agent.register_memory(array)
                continue
            with pytest.raises(kvxfer.InvalidArgument, match="memory of GPU 1, not of GPU 0"):
                agent.register_memory(array)
            agent.register_memory(kvxfer.RawMemory(array.address, 16, "cuda", device))


@pytest.mark.parametrize("stream", [None, 1, 2, 12345])
def test_registering_waits_for_no_stream(stream: int | None) -> None:
    """What the array says of one is about its content, which nothing reads: 12345 is none."""
    with kvxfer.Agent(name("streams")) as agent:
        agent.register_memory(CudaArray((16,), stream=stream))


class _Dlpack:
    """CUDA memory by DLPack, as torch.Tensor.__dlpack__ hands it out."""

    class _Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device_type", ctypes.c_int32),
            ("device_id", ctypes.c_int32),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("manager_ctx", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        ]

    def __init__(self, memory: CudaMemory) -> None:
        self.memory = memory
        self.streams: list[Any] = []
        self._shape = (ctypes.c_int64 * 1)(memory.size)
        self._tensor = self._Tensor(
            memory.address, 2, memory.device, 1, 1, 8, 1, self._shape, None, 0, None, None
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.memory.device

    def __dlpack__(self, *, stream: int | None = None) -> object:
        self.streams.append(stream)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self._tensor), b"dltensor", None)


def test_dlpack_is_asked_not_to_wait() -> None:
    """torch would put a wait into its default stream, which may be capturing a graph."""
    with kvxfer.Agent(name("dlpack")) as agent:
        tensor = _Dlpack(CudaMemory(4096, device=1))
        region = agent.register_memory(tensor)
        assert (region.kind, region.bytes, tensor.streams) == ("cuda", 4096, [-1])


class _OfOtherDevice(CudaTensor):
    """torch has DLPack for tensors of the current device only."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.memory.device

    def __dlpack__(self, *, stream: int | None = None) -> object:
        raise BufferError("Can't export tensors on a different CUDA device index")


def test_a_tensor_of_another_device_than_the_current_one() -> None:
    with kvxfer.Agent(name("dlpack")) as agent:
        tensor = _OfOtherDevice((4, 8), np.float32, device=1)
        region = agent.register_memory(tensor)
        assert (region.kind, region.address, region.bytes) == ("cuda", tensor.address, 128)
        assert kvxfer.PagedRegion.of(tensor) == kvxfer.PagedRegion(tensor.address, 32, 32, 4)
        tensor.requires_grad = True
        with pytest.raises(BufferError, match="different CUDA device"):
            agent.register_memory(tensor)


@pytest.mark.torch
def test_dlpack_of_the_host_is_asked_as_torch_wants_it() -> None:
    torch = pytest.importorskip("torch")
    with kvxfer.Agent(name("dlpack")) as agent:
        assert agent.register_memory(torch.zeros(4096)).kind == "host"


# --- By which path --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", ["write", "read"])
def test_from_gpu_to_gpu_in_one_process(path: str, call: str) -> None:
    backends, says = PATHS[path]
    with pair(backends=backends) as (left, right):
        rig = Rig(left, right)
        transfer = getattr(rig, call)(notification=b"there")
        transfer.wait(20)
        assert rig.landed()
        assert transfer.stats.path == says
        told = (right if call == "write" else left).wait_notification(20)
        assert told.payload == b"there"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", ["write", "read"])
@pytest.mark.parametrize("gpu_is", ["ours", "theirs"])
def test_between_gpu_and_host(path: str, call: str, gpu_is: str) -> None:
    backends, _ = PATHS[path]
    host = np.zeros((BLOCKS, BLOCK), np.uint8)
    with pair(backends=backends) as (left, right):
        rig = Rig(left, right, **{"theirs" if gpu_is == "ours" else "ours": host})
        getattr(rig, call)().wait(20)
        assert rig.landed()


def test_between_two_gpus() -> None:
    with pair(backends=["cuda_ipc", "tcp"]) as (left, right):
        rig = Rig(left, right, theirs=CudaArray((BLOCKS, BLOCK), device=1))
        transfer = rig.write()
        transfer.wait(20)
        assert rig.landed() and transfer.stats.path == "cuda_ipc"


def test_explain_says_the_path_of_gpu_memory() -> None:
    with pair(backends=["tcp"]) as (left, right):
        Rig(left, right).write().wait(20)
        assert "staged" in str(left.explain(right.name))


_CHILD = """
    import os, pickle, sys
    import numpy as np
    import kvxfer
    from cuda_standin import CudaArray

    backends = sys.argv[1].split(",")
    agent = kvxfer.Agent("child", backends=backends)
    array = CudaArray((64, 4096))
    array.content()[:] = 7
    agent.register_memory(array)
    out = os.fdopen(os.dup(1), "wb")
    pickle.dump((agent.metadata(), kvxfer.PagedRegion.of(array)), out)
    out.flush()
    told = agent.wait_notification(60)
    ids = pickle.loads(told.payload)
    pickle.dump(array.content()[ids].copy(), out)
    out.flush()
    sys.stdin.read()
    agent.close()
"""


@pytest.mark.parametrize("path", PATHS)
def test_from_gpu_to_gpu_between_two_processes(path: str) -> None:
    backends, says = PATHS[path]
    with (
        kvxfer.Agent(name("parent"), backends=backends) as agent,
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_CHILD), ",".join(backends)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        ) as child,
    ):
        assert child.stdout is not None and child.stdin is not None
        metadata, theirs = pickle.load(child.stdout)
        array = CudaArray((BLOCKS, BLOCK))
        array.content()[:] = _noise()
        agent.register_memory(array)
        ours = kvxfer.PagedRegion.of(array)
        peer = agent.add_peer(metadata)
        agent.read(peer, ours, theirs, [9], [5]).wait(20)
        assert (array.content()[9] == 7).all()
        transfer = agent.write(peer, ours, theirs, IDS, THEIRS, notification=pickle.dumps(THEIRS))
        transfer.wait(20)
        assert transfer.stats.path == says
        assert np.array_equal(pickle.load(child.stdout), array.content()[IDS])
        child.stdin.close()
        assert child.wait(20) == 0


# --- KV caches ------------------------------------------------------------------------------------

LAYERS, HEADS, TOKENS, SIZE = 3, 4, 16, 8
MODEL = kvxfer.KvModel(LAYERS, HEADS, SIZE, SIZE, "fp32", fingerprint=7)


class Worker:
    """An agent with a cache on a GPU: a tensor a layer, views of one allocation, as vLLM's."""

    def __init__(self, word: str, rank: int = 0, ranks: int = 1, axes: str = "BHNC") -> None:
        self.agent = kvxfer.Agent(name(word), backends=["cuda_ipc", "tcp"])
        heads = HEADS // ranks
        order = (heads, TOKENS) if axes == "BHNC" else (TOKENS, heads)
        shape = (12, *order, 2 * SIZE)
        whole = CudaTensor((LAYERS, *shape))
        each = int(np.prod(shape))
        self.layers = [whole.view_of(layer * each, shape) for layer in range(LAYERS)]
        shard = kvxfer.KvShard(LAYERS, tp_rank=rank, tp_size=ranks)
        layout = kvxfer.KvLayout.from_tensors(
            MODEL, shard, [kvxfer.KvTensor.of(self.layers[0], axes)]
        )
        self.agent.register_memory(whole)
        self.agent.register_kv_cache("kv", layout, self.layers)
        self.by_heads = axes == "BHNC"

    def block(self, layer: int, block: int) -> np.ndarray:
        """By heads, then tokens."""
        values = self.layers[layer].content()[block]
        return values if self.by_heads else values.transpose(1, 0, 2)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.agent.close()


@pytest.mark.parametrize("axes", ["BHNC", "BNHC"])
def test_a_kv_cache_in_gpu_memory(axes: str) -> None:
    """Written, and read under a lease, to two ranks, heads and tokens in another order: the GPU
    rearranges them."""
    with (
        Worker("prefill") as prefill,
        Worker("decode", 0, 2, axes) as first,
        Worker("decode", 1, 2, axes) as second,
    ):
        for layer in prefill.layers:
            layer.content()[:] = np.random.default_rng(3).random(layer.shape, np.float32)
        decode = [first, second]
        for worker in decode:
            know(prefill.agent, worker.agent)
        group = [worker.agent.name for worker in decode]
        transfer = prefill.agent.write_blocks(group, "kv", [3, 5], [7, 1], 2 * TOKENS, request="r")
        transfer.wait(20)
        assert "cuda_ipc" in transfer.stats.path
        for worker in decode:
            assert worker.agent.wait_notification(20).request == "r"
        prefill.agent.lease_blocks("kv", "lease", [4], hold=30)
        for worker in decode:
            worker.agent.read_blocks(
                [prefill.agent.name], "kv", [9], [4], TOKENS, lease="lease"
            ).wait(20)
        for layer in range(LAYERS):
            for mine, theirs in ((3, 7), (5, 1), (4, 9)):
                there = np.concatenate([worker.block(layer, theirs) for worker in decode])
                assert np.array_equal(prefill.block(layer, mine), there)


# --- What is refused ------------------------------------------------------------------------------


def test_memory_that_was_freed() -> None:
    with kvxfer.Agent(name("freed")) as agent:
        array = CudaArray((4096,))
        freed = kvxfer.RawMemory(array.address, 4096, "cuda")
        array.memory.free()
        with pytest.raises(kvxfer.InvalidArgument, match="GPU memory that was freed or never was"):
            agent.register_memory(freed)


@pytest.mark.parametrize("path", PATHS)
def test_memory_freed_while_it_is_registered(path: str) -> None:
    """A kernel that touched it would end all use of the GPU in this process."""
    with pair(backends=PATHS[path][0]) as (left, right):
        rig = Rig(left, right)
        regions = rig._regions()
        rig.ours.memory.free()
        transfer = left.write(right.name, *regions, IDS, THEIRS)
        with pytest.raises(kvxfer.FailedPrecondition, match="freed while"):
            transfer.wait(20)
        assert not content(rig.theirs).any()
        # Nothing of it stays: other memory goes as before, be it at the same address.
        left.deregister_memory(rig.region)
        left.register_memory(other := CudaArray((BLOCK,)))
        left.write(right.name, [(other.address, BLOCK)], [(rig.theirs.address, BLOCK)]).wait(20)


def test_a_tensor_freed_while_it_is_registered() -> None:
    """One that says its address is asked first: nothing is posted."""
    with pair(backends=["cuda_ipc", "tcp"]) as (left, right):
        rig = Rig(left, right, ours=CudaTensor((BLOCKS, BLOCK), np.uint8))
        regions = rig._regions()
        rig.ours.memory.free()
        with pytest.raises(kvxfer.InvalidArgument, match="was freed or moved while registered"):
            left.write(right.name, *regions, IDS, THEIRS)


def test_host_memory_that_says_cuda() -> None:
    with kvxfer.Agent(name("host")) as agent:
        array = CudaArray((4096,))
        host = np.zeros(4096, np.uint8)
        called_cuda = SimpleNamespace(
            __cuda_array_interface__=array.__cuda_array_interface__
            | {"data": (host.ctypes.data, False)}
        )
        for memory in (called_cuda, kvxfer.RawMemory(host.ctypes.data, 4096, "cuda")):
            with pytest.raises(
                kvxfer.InvalidArgument,
                match="are called CUDA memory and are host memory.*register host memory as host",
            ):
                agent.register_memory(memory)


def test_gpu_memory_that_says_host() -> None:
    with kvxfer.Agent(name("gpu"), backends=["tcp"]) as agent:
        agent.register_memory(CudaArray((16,)))  # the driver is in use
        array = CudaArray((4096,))
        with pytest.raises(
            kvxfer.InvalidArgument, match="are called host memory and are memory of GPU 0"
        ):
            agent.register_memory(kvxfer.RawMemory(array.address, 4096))


def test_a_device_that_is_not_there() -> None:
    with kvxfer.Agent(name("gpu")) as agent:
        array = CudaArray((16,))
        array.device = SimpleNamespace(id=9)
        with pytest.raises(kvxfer.InvalidArgument, match="9"):
            agent.register_memory(array)


def test_regions_that_run_over() -> None:
    with kvxfer.Agent(name("over")) as agent:
        array = CudaArray((4096,))
        with pytest.raises(kvxfer.InvalidArgument, match="run over the end of their allocation"):
            agent.register_memory(kvxfer.RawMemory(array.address, 8192, "cuda"))


def test_an_array_that_is_not_contiguous_or_read_only() -> None:
    with kvxfer.Agent(name("shape")) as agent:
        array = CudaArray((8, 8))
        for changed, text in [
            ({"strides": (16, 1), "shape": (4, 8)}, "expected contiguous memory"),
            ({"data": (array.address, True)}, "is read-only"),
            ({"typestr": "x"}, "typestr"),
            ({"strides": (8,)}, "strides are not as many"),
        ]:
            said = SimpleNamespace(
                __cuda_array_interface__=array.__cuda_array_interface__ | changed
            )
            with pytest.raises(kvxfer.InvalidArgument, match=text):
                agent.register_memory(said)


def test_ids_in_gpu_memory() -> None:
    with pair(backends=["cuda_ipc"]) as (left, right):
        rig = Rig(left, right)
        ours, theirs = rig._regions()
        left_ids, right_ids = (CudaArray((len(IDS),), np.int32) for _ in range(2))
        for array, ids in (left_ids, IDS), (right_ids, THEIRS):
            left.register_memory(array, access="none")
            content(array)[:] = ids
        left.write(right.name, ours, theirs, left_ids, right_ids).wait(20)
        assert rig.landed()
        # One side may have them on the host.
        left.read(right.name, ours, theirs, THEIRS, right_ids).wait(20)
        assert np.array_equal(content(rig.ours)[THEIRS], content(rig.theirs)[THEIRS])
        content(left_ids)[0] = BLOCKS
        with pytest.raises(kvxfer.InvalidArgument, match="an id in GPU memory is beyond"):
            left.write(right.name, ours, theirs, left_ids, right_ids).wait(20)


def test_ids_in_gpu_memory_that_are_refused() -> None:
    with pair(backends=["tcp"]) as (left, right):
        rig = Rig(left, right)
        ours, theirs = rig._regions()
        ids = CudaArray((4,), np.int32)
        with pytest.raises(kvxfer.InvalidArgument, match="local_device_ids"):
            left.write(right.name, ours, theirs, ids, THEIRS)
        left.register_memory(ids, access="none")
        with pytest.raises(kvxfer.FailedPrecondition, match="its ids are in GPU memory"):
            left.write(right.name, ours, theirs, ids, THEIRS[:4]).wait(20)
        wide = CudaArray((4,), np.int64)
        with pytest.raises(kvxfer.InvalidArgument, match="expected int32 or uint32 without gaps"):
            left.write(right.name, ours, theirs, wide, THEIRS[:4])
