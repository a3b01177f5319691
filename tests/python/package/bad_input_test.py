"""What is wrong with an argument is said: which one, what it is, what was expected."""

from __future__ import annotations

from collections.abc import Iterator

import kvxfer
import numpy as np
import pytest
from pairs import know, name, pair, run_well


class Rig:
    """A pair with one registered cache each."""

    def __init__(self, left: kvxfer.Agent, right: kvxfer.Agent) -> None:
        self.left, self.right = left, right
        self.source = np.zeros((16, 256), np.uint8)
        self.target = np.zeros((16, 256), np.uint8)
        self.region = left.register_memory(self.source)
        right.register_memory(self.target)
        know(left, right)
        self.ours = kvxfer.PagedRegion.of(self.source)
        self.theirs = kvxfer.PagedRegion.of(self.target)

    def write(self, ours: object, theirs: object) -> kvxfer.Transfer:
        return self.left.write(self.right.name, self.ours, self.theirs, ours, theirs)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with pair() as (left, right):
        yield Rig(left, right)


@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [
        (np.array([1.0]), TypeError, "local_ids is an array of float64; expected integers"),
        (np.array([True]), TypeError, "local_ids is an array of other8; expected integers"),
        (["a"], TypeError, r"local_ids\[0\] is a str; expected an integer"),
        ([1.5], TypeError, r"local_ids\[0\] is a float; expected an integer"),
        ("12", TypeError, "local_ids is a str; expected an array or a list of integers"),
        (7, TypeError, "local_ids is a int; expected an array or a list of integers"),
        ([0, -1], ValueError, r"local_ids\[1\] is -1; expected an id from 0"),
        (np.array([0, -1], np.int32), ValueError, r"local_ids\[1\] is -1; expected an id from 0"),
        (np.array([0, -1], np.int64), ValueError, r"local_ids\[1\] is -1; expected an id from 0"),
        (np.array([0, 2**33]), ValueError, r"local_ids\[1\] is 8589934592; expected an id"),
        ([2**70, 1], ValueError, r"local_ids\[0\] is 1180591620717411303424; expected an id"),
        (np.zeros((2, 1), np.int32), ValueError, "local_ids is int32 of shape .*one dimension"),
        ([0, 16], ValueError, "16"),
        ([0], ValueError, "local_ids|lists"),
    ],
)
def test_ids(rig: Rig, ids: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rig.write(ids, [0, 1])


def test_ids_of_one_side_only(rig: Rig) -> None:
    with pytest.raises(ValueError, match="one of local_ids and remote_ids is given"):
        rig.left.write(rig.right.name, rig.ours, rig.theirs, [1])


def test_destinations_twice(rig: Rig) -> None:
    with pytest.raises(kvxfer.InvalidArgument):
        rig.write([1, 2], [3, 3])


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        (np.zeros((1, 2), np.int32), TypeError, "local is an array of int32; expected an array"),
        (np.zeros((1, 2)), TypeError, "local is an array of float64; expected an array"),
        (np.zeros((1, 4), np.int64), ValueError, "local has 4 columns; expected an array"),
        (np.zeros(2, np.int64), ValueError, "local is int64 of shape .*expected an array"),
        ([(1, 2, 3)], TypeError, r"local\[0\] is \(1, 2, 3\); expected \(address, bytes\)"),
        ([(-1, 2)], TypeError, r"local\[0\] is \(-1, 2\); expected \(address, bytes\)"),
        (5, TypeError, "local is a int; expected an array"),
        ([(4096, 16)], ValueError, "region"),
    ],
)
def test_descriptors(rig: Rig, rows: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rig.left.write(rig.right.name, rows, [(rig.target.ctypes.data, 16)])


@pytest.mark.parametrize(
    ("memory", "error", "text"),
    [
        (b"immutable", ValueError, "memory is read-only; expected memory that may be written to"),
        (np.zeros((8, 8), np.uint8)[:, ::2], ValueError, "memory is uint8 .*expected contiguous"),
        (np.zeros(0, np.uint8), ValueError, "zero bytes"),
        (17, TypeError, "memory is a int; expected an object with the buffer protocol"),
        (None, TypeError, "memory is a NoneType; expected an object with the buffer protocol"),
        (kvxfer.RawMemory(0, 64), ValueError, "null"),
    ],
)
def test_memory(rig: Rig, memory: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        rig.left.register_memory(memory)


def test_gpu_memory_without_a_driver() -> None:
    """In a process that does not find the stand-in, which other tests use."""
    run_well(
        """
        import kvxfer
        left, right = (kvxfer.Agent(each, backends=["tcp"]) for each in ("left", "right"))
        left.add_peer(right.metadata())
        left.register_memory(bytearray(64))
        for call in (
            lambda: left.register_memory(kvxfer.RawMemory(4096, 4096, "cuda")),
            lambda: left.notify("right", b"", stream=2),
            lambda: left.notify("right", b"", event=4096),
        ):
            try:
                call()
            except kvxfer.Unimplemented as error:
                assert "no CUDA driver here" in str(error), error
            else:
                raise SystemExit("it was taken")
        left.notify("right", b"", stream=None, event=None).wait(20)
        """,
        without_driver=True,
    )


def test_memory_that_is_read_only(rig: Rig) -> None:
    frozen = np.zeros(64, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="memory is read-only"):
        rig.left.register_memory(frozen)


@pytest.mark.torch
def test_a_tensor_that_is_not_contiguous(rig: Rig) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="memory is float32 .*expected contiguous"):
        rig.left.register_memory(torch.zeros(8, 8)[:, :4])
    # A permutation of contiguous memory has no gaps.
    rig.left.register_memory(torch.zeros(2, 3, 4).permute(2, 0, 1))


@pytest.mark.torch
def test_a_tensor_freed_while_registered(rig: Rig) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(16, 256, dtype=torch.uint8)
    region = rig.left.register_memory(tensor)
    rig.write([0], [0]).wait(5)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(
        kvxfer.InvalidArgument, match=f"region {region.id} was freed or moved while registered"
    ):
        rig.write([0], [0])
    rig.left.deregister_memory(region)
    rig.write([0], [0]).wait(5)


def test_memory_whose_last_name_is_gone_stays(rig: Rig) -> None:
    values = np.arange(256, dtype=np.uint8)
    region = rig.left.register_memory(values.copy())
    rig.left.write(
        rig.right.name, [(region.address, 256)], [(rig.target.ctypes.data, 256)]
    ).wait(5)
    assert (rig.target[0] == values).all()


def test_a_registered_bytearray_cannot_be_resized(rig: Rig) -> None:
    grows = bytearray(64)
    region = rig.left.register_memory(grows)
    with pytest.raises(BufferError):
        grows.extend(b"more")
    rig.left.deregister_memory(region)
    grows.extend(b"more")


@pytest.mark.parametrize("payload", ["text", 5, [1, 2], np.zeros(3, np.uint8)])
def test_a_notification_that_is_not_bytes(rig: Rig, payload: object) -> None:
    kind = type(payload).__name__
    with pytest.raises(TypeError, match=f"notification is a .*{kind}; expected bytes"):
        rig.left.notify(rig.right.name, payload)


def test_a_notification_that_is_too_large(rig: Rig) -> None:
    rig.left.notify(rig.right.name, bytes(64 * 1024)).wait(5)
    with pytest.raises(kvxfer.InvalidArgument, match="larger than 64 KiB"):
        rig.left.notify(rig.right.name, bytes(64 * 1024 + 1))


def test_metadata_of_something_else(rig: Rig) -> None:
    good = rig.right.metadata()
    for bad, text in [
        (b"", "metadata"),
        (b"nixlsomething of another library", "not kvxfer metadata"),
        (good[:-3], "metadata"),
        (good[:20] + b"x" + good[21:], "metadata"),
    ]:
        with pytest.raises(kvxfer.InvalidArgument, match=text):
            rig.left.add_peer(bad)
    with pytest.raises(TypeError, match="metadata is a str; expected bytes"):
        rig.left.add_peer("text")
    with pytest.raises(kvxfer.InvalidArgument, match="of this agent itself"):
        rig.left.add_peer(rig.left.metadata())


def test_names_of_nothing(rig: Rig) -> None:
    for call in (
        lambda: rig.left.notify("nobody", b""),
        lambda: rig.left.remove_peer("nobody"),
        lambda: rig.left.explain("nobody"),
        lambda: rig.left.deregister_memory(99),
        lambda: rig.left.release_lease("nothing"),
    ):
        with pytest.raises(kvxfer.NotFound):
            call()
    with pytest.raises(LookupError):
        rig.left.explain("nobody")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tcp_stream": 2}, "there is no option tcp_stream"),
        ({"backend": 3}, "option backend is not a dict"),
        ({"backend": {"verbs": 3}}, "option backend.verbs is not a dict"),
        ({"backend": {"tcp": {"streams": None}}}, "option backend.tcp.streams is None"),
        ({"stripe_from": "two"}, "option stripe_from is 'two'"),
        ({"backends": "tcp"}, "option backends is 'tcp'"),
    ],
)
def test_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        kvxfer.Agent(name("options"), **options)


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        ({"tcp": {"streams": "two"}}, 'KVXFER_TCP_STREAMS.* is "two": must be a number from 1 to 16'),
        ({"tcp": {"steams": 2}}, "no option `steams`.*did you mean `streams`"),
        ({"tpc": {"streams": 2}}, 'backend "tpc".*did you mean tcp'),
    ],
)
def test_options_of_a_backend(backend: dict[str, dict[str, object]], text: str) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match=text):
        kvxfer.Agent(name("options"), backends=["tcp"], backend=backend)


def test_words(rig: Rig) -> None:
    for call, text in [
        (lambda: rig.left.register_memory(bytearray(8), "rw"), 'access is "rw"; expected'),
        (lambda: rig.left.notify(rig.right.name, b"", order="first"), 'order is "first"; expected'),
        (lambda: kvxfer.HostBuffer(64, "vast"), 'pages is "vast"; expected'),
        (lambda: kvxfer.RawMemory(1, 1, "gpu"), 'kind is "gpu"; expected'),
        (lambda: kvxfer.KvModel(1, 1, 1, 1, "float"), 'element is "float"; expected'),
        (lambda: kvxfer.set_log_level("loud"), 'level is "loud"; expected'),
    ]:
        with pytest.raises(kvxfer.InvalidArgument, match=text):
            call()


def test_errors_pickle_and_say_their_code() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(kvxfer.PeerLost("gone")))
    assert isinstance(error, ConnectionError) and error.code == "UNAVAILABLE"


def test_a_released_memoryview(rig: Rig) -> None:
    view = memoryview(b"gone")
    view.release()
    with pytest.raises(ValueError, match="released"):
        rig.left.notify(rig.right.name, view)


def test_lists_that_shrink_while_they_are_read(rig: Rig) -> None:
    class Shrinks:
        def __init__(self, whole: list[object]) -> None:
            self.whole = whole

        def __index__(self) -> int:
            self.whole.clear()
            return 1

    ids: list[object] = []
    ids += [Shrinks(ids), *range(2, 10)]
    rig.write(ids, range(9)).wait(5)


def test_a_region_of_another_agent(rig: Rig) -> None:
    other = rig.right.register_memory(bytearray(64))
    for call in (
        lambda: rig.left.deregister_memory(other),
        lambda: rig.left.quiesce(regions=[other]),
    ):
        with pytest.raises(kvxfer.InvalidArgument, match="is of another agent"):
            call()
    for bad, error in (("x", TypeError), (-1, ValueError), (2**40, ValueError), (None, TypeError)):
        with pytest.raises(error, match="region is"):
            rig.left.deregister_memory(bad)


def test_blocks_in_descending_order(rig: Rig) -> None:
    with pytest.raises(kvxfer.InvalidArgument, match="ascending order"):
        kvxfer.PagedRegion.of(rig.source[::-1])
