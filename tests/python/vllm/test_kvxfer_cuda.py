"""KvxferConnector's workers with KV caches in GPU memory, over the stand-in CUDA driver: prefill on
one GPU, decode on another, each with a stream that it computes in. No engine is started."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cuda_standin import CudaMemory, CudaStream, CudaTensor, hooks, needs_standin

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")
torch = pytest.importorskip("torch")

# pylint: disable=wrong-import-position
import kvxfer.vllm.worker  # noqa: E402
from kvxfer.vllm.addresses import OwnAddress  # noqa: E402
from kvxfer.vllm.connector import KvxferConnector  # noqa: E402
from kvxfer.vllm.division import Division  # noqa: E402
from kvxfer.vllm.groups import Group  # noqa: E402
from kvxfer.vllm.kinds import TOKENS, Kind  # noqa: E402
from kvxfer.vllm.place import Place  # noqa: E402
from kvxfer.vllm.reference import GroupBlocks, Reference, Worker  # noqa: E402
from kvxfer.vllm.settings import Settings  # noqa: E402
from kvxfer.vllm.step import (  # noqa: E402
    Expected,
    Fetch,
    Held,
    Offer,
    Part,
    Step,
    Write,
)

pytestmark = needs_standin

_BLOCKS, _HEADS, _TOKENS, _SIZE = 16, 2, 16, 8
_LAYERS = tuple(f"model.layers.{number}.attn" for number in range(3))
_KIND = Kind(TOKENS, _HEADS, _SIZE, _SIZE, "fp32", "float32")
_DIVISION = Division(1, ((len(_LAYERS),),))
_SHAPE = (_BLOCKS, _HEADS, _TOKENS, 2 * _SIZE)
# Of a request of two blocks and a half.
_LAST = 40
_OURS, _THEIRS = (5, 2, 9), (3, 11, 4)
_LEASE = "0123456789ab"
_PROMPT = "a hash of it"
_PATHS = {"cuda_ipc": (("cuda_ipc", "tcp"), "cuda_ipc"), "staged": (("tcp",), "tcp staged")}
_LIMIT_S = 20.0
_FINGERPRINT = 7
_HERE = OwnAddress("127.0.0.1", "127.0.0.1")


class _Engine:
    """A worker of one as vLLM drives it, by its connector; what its model computes is put into its
    stream."""

    def __init__(self, name: str, device: int, settings: Settings, why_no_push: str = "") -> None:
        self.stream = CudaStream(device)
        self._whole = CudaTensor((len(_LAYERS), *_SHAPE), np.float32, device)
        each = int(np.prod(_SHAPE))
        self.caches = {
            layer: self._whole.view_of(number * each, _SHAPE)
            for number, layer in enumerate(_LAYERS)
        }
        self.worker = kvxfer.vllm.worker.WorkerSide(
            settings,
            name,
            _HERE,
            [Group(_TOKENS)],
            lambda _: [dict.fromkeys(_LAYERS, _KIND)],
            _FINGERPRINT,
            Place(),
            why_no_push,
        )
        # Its constructor wants a whole configuration of vLLM.
        self.connector = KvxferConnector.__new__(KvxferConnector)
        self.connector._scheduler = None
        self.connector._worker = self.worker
        self.connector._connector_metadata = None
        self.connector.register_kv_caches(self.caches)
        address = self.connector.get_handshake_metadata()
        assert address is not None
        assert address.kernel_block_tokens == [_TOKENS]
        self.address: Worker = address.worker
        self.transfers: list[kvxfer.Transfer] = []
        """All that it has posted."""
        self._computed: dict[tuple[str, int], CudaMemory] = {}

    def fill(self, seed: int) -> None:
        for number, cache in enumerate(self.caches.values()):
            cache.content()[:] = np.random.default_rng(seed + number).random(_SHAPE, np.float32)

    def compute(self, layer: str, blocks: tuple[int, ...], value: float) -> None:
        """A kernel that writes KV."""
        cache = self.caches[layer]
        for block in blocks:
            target = cache[block]
            size = target.numel() * target.element_size()
            result = CudaMemory(size, self.stream.device_index)
            result.bytes().view(np.float32)[:] = value
            self.stream.copy(target.data_ptr(), result.address, size)
            self._computed[(layer, block)] = result

    def begin(self, step: Step) -> None:
        self.connector.bind_connector_metadata(step)
        self.connector.start_load_kv(None)

    def end(self) -> Any:
        self.connector.wait_for_save()
        results = self.connector.get_transfer_results(set())
        self.connector.clear_connector_metadata()
        return results

    def step(self, step: Step | None = None) -> Any:
        self.begin(step or Step())
        return self.end()

    def tokens(self, layer: str, blocks: tuple[int, ...]) -> np.ndarray:
        """KV of the request's tokens: token, head, K and V."""
        content = self.caches[layer].content()[list(blocks)].transpose(0, 2, 1, 3)
        return content.reshape(-1, _HEADS, 2 * _SIZE)[:_LAST]


def _recorded(post: Callable[..., kvxfer.Transfer], engines: list[_Engine]) -> Any:
    def post_and_record(agent: kvxfer.Agent, *arguments: Any, **options: Any) -> kvxfer.Transfer:
        transfer = post(agent, *arguments, **options)
        for engine in engines:
            if engine.worker._agent is agent:
                engine.transfers.append(transfer)
        return transfer

    return post_and_record


Start = Callable[..., tuple[_Engine, _Engine]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    engines: list[_Engine] = []
    before = hooks().kvxfer_standin_default_stream_uses()
    for name in ("read_blocks", "write_blocks", "write_layers"):
        monkeypatch.setattr(kvxfer.Agent, name, _recorded(getattr(kvxfer.Agent, name), engines))
    # What vLLM launches kernels into.
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: engines[device.index].stream)

    def begin(path: str, why_no_push: str = "") -> tuple[_Engine, _Engine]:
        settings = Settings(backends=_PATHS[path][0], drain=0.0)
        engines.extend(
            _Engine(name, device, settings, why_no_push)
            for device, name in enumerate(("prefill", "decode"))
        )
        prefill, decode = engines
        prefill.fill(1)
        decode.fill(11)
        return prefill, decode

    yield begin
    for engine in engines:
        engine.stream.let_go()
        engine.connector.shutdown()
    assert hooks().kvxfer_standin_default_stream_uses() == before


def _reference(mode: str, prefill: _Engine) -> Reference:
    return Reference(
        mode=mode,
        engine="prefill",
        transfer=_LEASE,
        tokens=_LAST,
        fingerprint={"weights": "a"},
        workers=(prefill.address,),
        division=_DIVISION,
        groups=(GroupBlocks(0, _OURS),),
        block_tokens=(_TOKENS,),
    )


_PARTS = (Part(GroupBlocks(0, _THEIRS), 0, _LAST),)


def _fetch(prefill: _Engine) -> Step:
    return Step(fetches=[Fetch("there", _PROMPT, _reference("pull", prefill), _PARTS)])


def _hold() -> Step:
    return Step(held=[Held("here", _LEASE, _PROMPT, (GroupBlocks(0, _OURS),), confirmed=True)])


def _until(holds: Callable[[], Any], *engines: _Engine) -> Any:
    """Steps of engines that have nothing to compute, until that is so."""
    end = time.monotonic() + _LIMIT_S
    while not (held := holds()):
        assert time.monotonic() < end, "nothing becomes of it"
        for engine in engines:
            engine.step()
        time.sleep(0.001)
    return held


def _finish(engine: _Engine, step: Step | None = None, other: _Engine | None = None) -> set[str]:
    """Requests that were loaded in the end."""
    results = engine.step(step)
    end = time.monotonic() + _LIMIT_S
    while not results.finished_recving:
        assert time.monotonic() < end, "nothing is loaded"
        if other is not None:
            other.step()
        results = engine.step()
        time.sleep(0.001)
    assert not results.failed_recving
    return results.finished_recving


def _same(prefill: _Engine, decode: _Engine) -> bool:
    return all(
        np.array_equal(prefill.tokens(layer, _OURS), decode.tokens(layer, _THEIRS))
        for layer in _LAYERS
    )


def _untouched(decode: _Engine) -> bool:
    """All other blocks have what they had."""
    others = [block for block in range(_BLOCKS) if block not in _THEIRS]
    for number, cache in enumerate(decode.caches.values()):
        had = np.random.default_rng(11 + number).random(_SHAPE, np.float32)
        if not np.array_equal(cache.content()[others], had[others]):
            return False
    return True


# --- Pull -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", _PATHS)
def test_decode_reads_from_gpu_to_gpu(start: Start, path: str) -> None:
    prefill, decode = start(path)
    prefill.step(_hold())
    assert _finish(decode, _fetch(prefill)) == {"there"}
    assert [each.stats.path for each in decode.transfers] == [_PATHS[path][1]]
    assert _same(prefill, decode)
    assert _untouched(decode)
    # Prefill hears that its blocks are free.
    results = prefill.step()
    end = time.monotonic() + _LIMIT_S
    while results.finished_sending != {"here"}:
        assert time.monotonic() < end
        results = prefill.step()


@pytest.mark.parametrize("path", _PATHS)
def test_a_read_waits_for_what_decode_still_computes(start: Start, path: str) -> None:
    """A step that was launched before a request ended may still write into blocks that it had."""
    prefill, decode = start(path)
    prefill.step(_hold())
    decode.stream.hold()
    for layer in _LAYERS:
        decode.compute(layer, _THEIRS, 0.5)
    decode.step(_fetch(prefill))
    (transfer,) = _until(lambda: decode.transfers, decode)
    for _ in range(20):
        assert not decode.step().finished_recving
        time.sleep(0.002)
    assert not transfer.done()
    decode.stream.let_go()
    assert _finish(decode) == {"there"}
    assert _same(prefill, decode)


# --- Push -----------------------------------------------------------------------------------------


def _offer(prefill: _Engine, decode: _Engine) -> Step:
    offer = Offer(
        request="there",
        contents=_PROMPT,
        reference=_reference("push", prefill),
        parts=_PARTS,
        decode=(decode.address,),
        division=_DIVISION,
        block_tokens=(_TOKENS,),
    )
    return Step(offers=[offer])


def _write(number: int, first: int, last: int, computing: bool, final: bool) -> Step:
    blocks = (GroupBlocks(0, _OURS),)
    return Step(writes=[Write("here", _LEASE, number, blocks, first, last, computing, final)])


def _is_offered(prefill: _Engine) -> bool:
    heard = prefill.connector.build_connector_worker_meta()
    return heard is not None and heard.offered == {_LEASE: 1}


def _meet(prefill: _Engine, decode: _Engine) -> None:
    prefill.step(Step(expected=[Expected(_LEASE, _PROMPT)]))
    decode.step(_offer(prefill, decode))
    _until(lambda: _is_offered(prefill), prefill, decode)


@pytest.mark.parametrize("path", _PATHS)
def test_prefill_writes_layer_by_layer(start: Start, path: str) -> None:
    """Each when the GPU has computed it, which is after vLLM has said so; and posted when it has said so
    of the next one."""
    prefill, decode = start(path)
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    # Nothing is posted yet, which is not that all has ended.
    assert not prefill.connector.get_transfer_results(set()).finished_sending
    assert not prefill.transfers
    gates = []
    for number, layer in enumerate(_LAYERS):
        prefill.stream.hold()
        gates.append(prefill.stream.holds)
        prefill.compute(layer, _OURS, number + 1)
        prefill.connector.save_kv_layer(layer, prefill.caches[layer], None)
        assert len(prefill.transfers) == number
    transfers = prefill.transfers
    prefill.end()
    for number, gate in enumerate(gates):
        for _ in range(10):
            assert not decode.step().finished_recving
            time.sleep(0.001)
        assert [each.done() for each in transfers[number:]] == [False] * (3 - number)
        prefill.stream.let_go(gate)
        transfers[number].wait(_LIMIT_S)
        there = decode.tokens(_LAYERS[number], _THEIRS)
        assert (there == number + 1).all()
    assert _finish(decode, other=prefill) == {"there"}
    assert [each.stats.path for each in transfers] == [_PATHS[path][1]] * 3
    assert _same(prefill, decode)
    assert _untouched(decode)


def test_a_forward_that_raises_posts_no_further_layer(start: Start) -> None:
    prefill, decode = start("staged")
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    for layer in _LAYERS[:2]:
        prefill.connector.save_kv_layer(layer, prefill.caches[layer], None)
    assert len(prefill.transfers) == 1
    with pytest.raises(RuntimeError, match="illegal memory access"):
        try:
            raise RuntimeError("illegal memory access")
        finally:
            prefill.end()
    failed: set[str] = set()
    _until(lambda: failed.update(decode.step().failed_recving or ()) or failed, prefill)
    assert failed == {"there"}
    assert len(prefill.transfers) == 1


@pytest.mark.parametrize("path", _PATHS)
def test_chunks_and_layers_that_are_not_saved_one_by_one(start: Start, path: str) -> None:
    """What earlier steps have launched may not be computed either; and what save_kv_layer was not
    called for is sent at the end of the step."""
    prefill, decode = start(path)
    _meet(prefill, decode)
    prefill.stream.hold()
    for layer in _LAYERS:
        prefill.compute(layer, _OURS[:1], 1)
    prefill.begin(_write(0, 0, _TOKENS, computing=False, final=False))
    (transfer,) = prefill.transfers
    prefill.end()
    prefill.begin(_write(1, _TOKENS, _LAST, computing=True, final=True))
    for layer in _LAYERS:
        prefill.compute(layer, _OURS[1:], 2)
    results = prefill.end()
    assert not results.finished_sending
    for _ in range(10):
        assert not decode.step().finished_recving
        time.sleep(0.001)
    assert not transfer.done()
    prefill.stream.let_go()
    assert _finish(decode, other=prefill) == {"there"}
    assert _same(prefill, decode)
    assert (decode.tokens(_LAYERS[2], _THEIRS)[_TOKENS:] == 2).all()


def _load_fails(prefill: _Engine, decode: _Engine) -> None:
    results = decode.step()
    end = time.monotonic() + _LIMIT_S
    while not results.failed_recving:
        assert time.monotonic() < end
        assert not results.finished_recving
        prefill.step()
        results = decode.step()
    assert results.failed_recving == {"there"}


def _save(engine: _Engine, layer: str, value: float) -> None:
    engine.compute(layer, _OURS, value)
    engine.connector.save_kv_layer(layer, engine.caches[layer], None)


@pytest.mark.parametrize("order", ["one after the other", "layer by layer"])
def test_nothing_leaves_before_the_last_save_of_a_microbatch(start: Start, order: str) -> None:
    """Dual batch overlap: each microbatch saves every layer, in a thread of its own."""
    prefill, decode = start("cuda_ipc")
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    saves = [(layer, value) for value in (1.0, 2.0) for layer in _LAYERS]
    if order == "layer by layer":
        saves = [(layer, value) for layer in _LAYERS for value in (1.0, 2.0)]
    threads = {value: ThreadPoolExecutor(1) for value in (1.0, 2.0)}
    for layer, value in saves:
        threads[value].submit(_save, prefill, layer, value).result()
        assert not prefill.transfers
    for thread in threads.values():
        thread.shutdown()
    prefill.end()
    assert _finish(decode, other=prefill) == {"there"}
    assert _same(prefill, decode)
    assert (decode.tokens(_LAYERS[0], _THEIRS) == 2).all()


def test_a_step_that_vllm_has_split_leaves_at_its_end(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one thread computes one microbatch after the other."""
    monkeypatch.setattr(kvxfer.vllm.layer_writes, "is_microbatched", lambda: True)
    prefill, decode = start("cuda_ipc")
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    for value in (1.0, 2.0):
        for layer in _LAYERS:
            _save(prefill, layer, value)
    assert not prefill.transfers
    prefill.end()
    assert _finish(decode, other=prefill) == {"there"}
    assert _same(prefill, decode)


def test_a_layer_that_is_saved_again_after_it_was_sent_fails_the_push(start: Start) -> None:
    """Should vLLM ever do so without a word: decode does not use what has come."""
    prefill, decode = start("cuda_ipc")
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    for value in (1.0, 2.0):
        for layer in _LAYERS:
            _save(prefill, layer, value)
    assert prefill.transfers
    prefill.end()
    _load_fails(prefill, decode)


def test_a_prefill_engine_that_cannot_write_says_so_at_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode does not wait until its offer ends."""
    lines: list[str] = []
    monkeypatch.setattr(
        kvxfer.vllm.receiving.logger, "error", lambda text, *values: lines.append(text % values)
    )
    prefill, decode = start("cuda_ipc", "push does not go with enable_dbo")
    begin = time.monotonic()
    decode.step(_offer(prefill, decode))
    _load_fails(prefill, decode)
    assert time.monotonic() - begin < Settings().lease / 2
    assert any("push does not go with enable_dbo" in line for line in lines)


def test_room_is_offered_after_what_decode_still_computes(start: Start) -> None:
    prefill, decode = start("cuda_ipc")
    decode.stream.hold()
    prefill.step(Step(expected=[Expected(_LEASE, _PROMPT)]))
    decode.step(_offer(prefill, decode))
    for _ in range(50):
        decode.step()
        prefill.step()
        assert not _is_offered(prefill)
        time.sleep(0.002)
    decode.stream.let_go()
    _until(lambda: _is_offered(prefill), prefill, decode)


def test_a_stream_that_cannot_be_waited_for_fails_the_push(start: Start) -> None:
    """And nothing else: decode is told, blocks are free."""
    prefill, decode = start("cuda_ipc")
    _meet(prefill, decode)
    prefill.begin(_write(0, 0, _LAST, computing=True, final=True))
    prefill.stream.capture(True)
    for layer in _LAYERS:
        prefill.connector.save_kv_layer(layer, prefill.caches[layer], None)
    prefill.stream.capture(False)
    results = prefill.end()
    end = time.monotonic() + _LIMIT_S
    sent = set(results.finished_sending or ())
    failed: set[str] = set()
    while not sent or not failed:
        assert time.monotonic() < end
        sent |= prefill.step().finished_sending or set()
        failed |= decode.step().failed_recving or set()
    assert (sent, failed) == ({"here"}, {"there"})


# --- What is refused ------------------------------------------------------------------------------


def test_caches_that_say_the_wrong_device(start: Start) -> None:
    _, decode = start("cuda_ipc")
    wrong = {layer: cache.view_of(0, _SHAPE) for layer, cache in decode.caches.items()}
    for cache in wrong.values():
        cache.device = type(cache.device)(type="cuda", index=0)
    with pytest.raises(kvxfer.InvalidArgument, match="memory of GPU 1, not of GPU 0"):
        decode.connector.register_kv_caches(wrong)
