"""Fingerprints go by what is in a block, not by the names that it was asked for by. No engine is
started."""

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_config import config_of

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")
torch = pytest.importorskip("torch")

# pylint: disable=wrong-import-position
from kvxfer.vllm.caches import Cache, caches_of  # noqa: E402
from kvxfer.vllm.division import Division  # noqa: E402
from kvxfer.vllm.fingerprint import Fingerprint, layout_factors  # noqa: E402
from kvxfer.vllm.groups import Group, layer_specs  # noqa: E402
from kvxfer.vllm.kinds import HEADS, PAGES, kinds_of  # noqa: E402
from kvxfer.vllm.reference import Reference, Worker, is_name, spoken_name  # noqa: E402
from kvxfer.vllm.weights import weights_of  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    compute_layer_kv_cache_shape_bytes,
    get_kv_quant_mode,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402

_LAYERS = ["model.layers.0.attn", "model.layers.1.attn"]


def _config(cache_dtype: str, dtype: Any = torch.bfloat16, **model: Any) -> Any:
    hf_config = SimpleNamespace(rope_theta=1e4)
    described = {
        "model": "a/model", "revision": None, "architectures": ["A"], "quantization": None,
        "dtype": dtype, "hf_text_config": hf_config, "hf_config": hf_config, "hf_overrides": {},
        "get_total_num_kv_heads": lambda: 2,
    }  # fmt: skip
    return SimpleNamespace(
        model_config=SimpleNamespace(**(described | model)),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        device_config=SimpleNamespace(device_type="cuda"),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        compilation_config=SimpleNamespace(static_forward_context={}),
        speculative_config=None,
    )


def _caches(config: Any, **spec: Any) -> KVCacheConfig:
    """As vLLM makes it of a model with two layers of full attention."""
    cache_dtype = config.cache_config.cache_dtype
    made = FullAttentionSpec(
        block_size=16,
        num_kv_heads=2,
        head_size=32,
        dtype=kv_cache_dtype_str_to_dtype(cache_dtype, config.model_config),
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
        **spec,
    )
    return KVCacheConfig(8, [], [KVCacheGroupSpec(_LAYERS, made)])


def _tensors(caches: KVCacheConfig) -> dict[str, Any]:
    """As vLLM allocates them, with heads outside of tokens."""
    return {
        layer: torch.empty(compute_layer_kv_cache_shape_bytes(spec, 8), dtype=torch.int8).view(
            getattr(spec, "dtype", torch.int8)
        )
        for group in caches.kv_cache_groups
        for layer, spec in layer_specs(group).items()
    }


def _found(config: Any, caches: KVCacheConfig) -> list[Cache]:
    """What a worker makes of it."""
    Group.all_of(caches)
    return caches_of([kinds_of(config, caches, _tensors(caches))])[0]


def _of(config: Any, caches: KVCacheConfig, tp: int = 1) -> Fingerprint:
    fingerprint = Fingerprint(config, "")
    fingerprint.add(layout_factors(_found(config, caches), Group.all_of(caches), tp))
    return fingerprint


def _fingerprint(cache_dtype: str, **config: Any) -> Fingerprint:
    made = _config(cache_dtype, **config)
    return _of(made, _caches(made))


@pytest.mark.parametrize(
    ("one", "other"), [("auto", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")]
)
def test_names_that_mean_the_same(one: str, other: str) -> None:
    assert _fingerprint(one).differs(_fingerprint(other).hashes) == ""
    assert _fingerprint(one).of_model == _fingerprint(other).of_model


@pytest.mark.parametrize(
    ("one", "other"),
    [("auto", "float16"), ("auto", "fp8"), ("fp8", "fp8_e5m2"), ("bfloat16", "fp8_e4m3")],
)
def test_names_that_mean_something_else(one: str, other: str) -> None:
    why = _fingerprint(one).differs(_fingerprint(other).hashes)
    assert "lays out the KV cache of this model otherwise" in why
    assert "--kv-cache-dtype" in why


def test_a_model_of_another_type_is_another() -> None:
    """float16 in the cache of both, computed from weights that are rounded otherwise."""
    one = _fingerprint("float16", dtype=torch.float16)
    assert "another model" in one.differs(_fingerprint("float16").hashes)
    assert "another model" in one.differs(_fingerprint("auto").hashes)


def test_a_model_that_was_changed_is_another() -> None:
    plain = _fingerprint("auto")
    changed = _fingerprint("auto", hf_overrides={"num_experts_per_tok": 2})
    assert "another model" in plain.differs(changed.hashes)
    same = [_fingerprint("auto", hf_overrides=json.loads) for _ in range(2)]
    assert same[0].differs(same[1].hashes) == ""


# --- options that change keys, or what a number means ---

_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096,
    "short_factor": [1.0], "long_factor": [4.0],
}  # fmt: skip
_TRAINED = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "max_trained_positions": 4096}


def _positioned(max_model_len: int = 4096, rope: Any = None, **hf_config: Any) -> Fingerprint:
    hf_config = {"max_position_embeddings": 131072, "rope_parameters": rope} | hf_config
    return _fingerprint(
        "auto", hf_text_config=SimpleNamespace(**hf_config), max_model_len=max_model_len
    )


@pytest.mark.parametrize(
    ("rope", "hf_config", "matters"),
    [
        (_LONG, {}, True),
        ({**_LONG, "rope_type": "su"}, {}, True),
        ({"full_attention": _LONG, "sliding_attention": {"rope_type": "default"}}, {}, True),
        (None, {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, True),
        (_TRAINED, {"model_type": "plamo3"}, True),
        (_TRAINED, {"model_type": "qwen2"}, False),
        ({"rope_type": "default"}, {"model_type": "plamo3"}, False),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, {}, False),
    ],
    ids=["longrope", "su", "nested", "rope_scaling", "dynamic", "dynamic of others", "default", "yarn"],
)
def test_max_model_len_that_chooses_how_positions_are_encoded(
    rope: Any, hf_config: dict[str, Any], matters: bool
) -> None:
    short, long = (_positioned(length, rope, **hf_config) for length in (4096, 32768))
    assert ("another model" in short.differs(long.hashes)) is matters
    assert ("another model" in long.differs(short.hashes)) is matters


def test_max_model_len_on_one_side_of_the_switch() -> None:
    assert _positioned(8192, _LONG).differs(_positioned(32768, _LONG).hashes) == ""
    assert _positioned(2048, _LONG).differs(_positioned(4096, _LONG).hashes) == ""
    scaled = _positioned(8192, _LONG, max_position_embeddings=65536)
    assert "another model" in scaled.differs(_positioned(8192, _LONG).hashes)


def _llama4(max_model_len: int, option: dict[str, Any], generation: dict[str, Any]) -> Fingerprint:
    return _fingerprint(
        "auto",
        hf_text_config=SimpleNamespace(model_type="llama4_text"),
        max_model_len=max_model_len,
        override_generation_config=option,
        try_get_generation_config=lambda: generation,
    )


def test_max_model_len_that_scales_queries_of_llama4() -> None:
    on, off = {"attn_temperature_tuning": True}, {"attn_temperature_tuning": False}
    short, long = _llama4(32768, {}, {}), _llama4(32769, {}, {})
    assert "another model" in short.differs(long.hashes)
    assert short.differs(_llama4(8192, {}, {}).hashes) == ""
    assert long.differs(_llama4(8192, on, off).hashes) == ""
    assert short.differs(_llama4(65536, {}, off).hashes) == ""


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"rope_type": "yarn", "factor": 40.0}, {"rope_type": "deepseek_yarn"}),
        ({"rope_type": "yarn", "attention_factor": 1.0}, {"rope_type": "deepseek_llama_scaling"}),
        ({"rope_type": "default"}, {"partial_rotary_factor": 0.5}),
    ],
)
def test_a_model_is_the_same_when_it_is_built(given: dict[str, Any], written: dict[str, Any]) -> None:
    """In an engine of one worker the scheduler sees what the model has written into its configuration;
    in one of several it does not."""
    before, after = (_positioned(rope=rope, rotary_dim=64) for rope in (given, given | written))
    assert before.differs(after.hashes) == ""


def test_positions_that_were_changed() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}
    plain = _positioned(rope=yarn)
    for change in ({"factor": 2.0}, {"mscale": 0.7}, {"rope_type": "linear"}):
        assert "another model" in plain.differs(_positioned(rope=yarn | change).hashes)


def test_options_that_change_what_is_computed() -> None:
    plain = _fingerprint("auto")
    for change in ({"hf_config_path": "/else"}, {"quantization_config": {"linear": "fp8"}}):
        assert "another model" in plain.differs(_fingerprint("auto", **change).hashes)
    for load_format, same in (("auto", True), ("safetensors", True), ("dummy", False)):
        config = _config("auto")
        config.load_config = SimpleNamespace(load_format=load_format)
        assert (_of(config, _caches(config)).hashes == plain.hashes) is same
    images = SimpleNamespace(mm_processor_kwargs={"do_rescale": False})
    changed = _fingerprint("auto", multimodal_config=images)
    assert "another model" in plain.differs(changed.hashes)


def test_fp8_of_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of MI300 mean half as much."""
    here, e5m2 = _fingerprint("fp8"), _fingerprint("fp8_e5m2")
    monkeypatch.setattr(type(current_platform), "is_fp8_fnuz", classmethod(lambda cls: True))
    there = _fingerprint("fp8")
    assert "lays out the KV cache" in here.differs(there.hashes)
    assert there.differs(_fingerprint("fp8_e4m3").hashes) == ""
    assert e5m2.differs(_fingerprint("fp8_e5m2").hashes) == ""
    config = _config("fp8")
    (cache,) = _found(config, _caches(config))
    assert cache.kind.element == "fp8_e4m3"


def test_attention_backends_are_told_apart() -> None:
    """Above all of e5m2: Triton's stores e4m3 where it is asked for that."""
    made = []
    for backend in ("TRITON_ATTN", "FLASHINFER", "FLASHINFER"):
        config = _config("fp8_e5m2")
        layer = SimpleNamespace(
            get_attn_backend=lambda name=backend: SimpleNamespace(get_name=lambda: name)
        )
        config.compilation_config.static_forward_context = dict.fromkeys(_LAYERS, layer)
        made.append(_of(config, _caches(config)))
    assert made[1].differs(made[2].hashes) == ""
    why = made[0].differs(made[1].hashes)
    assert "attention_backend is" in why
    assert "TRITON_ATTN" in why
    assert "--attention-backend" in why


# --- what has more in a block than numbers ---

_SCALED = (
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "turboquant_4bit_nc",
    "ultraquant_4bit",
)  # fmt: skip


@pytest.mark.parametrize("cache_dtype", _SCALED)
def test_scales_beside_numbers_are_moved_as_whole_blocks(cache_dtype: str) -> None:
    config = _config(cache_dtype)
    (cache,) = _found(config, _caches(config, state_content_bytes=40))
    kind = cache.kind
    assert (kind.content, kind.heads, kind.element) == (HEADS, 2, "bytes")
    assert kind.k_size == 16 * 40
    assert cache_dtype in kind.dtype
    assert "blocks of 16 of vLLM" in kind.packing
    other = _config("int8_per_token_head" if cache_dtype != "int8_per_token_head" else "nvfp4")
    why = _fingerprint(cache_dtype).differs(_of(other, _caches(other)).hashes)
    assert "kv_cache_dtype is" in why


@pytest.mark.parametrize(
    ("cache_dtype", "element"),
    [("auto", "bf16"), ("float16", "fp16"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")],
)
def test_elements(cache_dtype: str, element: str) -> None:
    config = _config(cache_dtype)
    (cache,) = _found(config, _caches(config))
    assert cache.kind.element == element


def test_slots_that_are_no_heads_are_moved_as_whole_blocks_of_a_worker() -> None:
    """Equal tensor parallelism alone, and the refusal says so."""
    config = _config("auto")
    config.parallel_config.tensor_parallel_size = 2
    caches = _caches(config, num_head_slots=4, state_content_bytes=64)
    (cache,) = _found(config, caches)
    assert (cache.kind.content, cache.kind.heads, cache.kind.k_size) == (PAGES, 2, 4 * 16 * 64)
    two, four = _of(config, caches, tp=2), _of(config, caches, tp=4)
    why = two.differs(four.hashes)
    assert "tensor_parallel_size is 2 here" in why
    assert "--tensor-parallel-size" in why


def test_other_ways_to_lay_out_a_block_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="4 tokens are one entry"):
        Group.all_of(_caches(_config("auto"), tokens_per_state=4))


def test_what_vllm_marks_as_another_kind_is_refused() -> None:
    config = _config("auto")
    caches = _caches(config)
    caches.kv_cache_groups[0].is_eagle_group = True
    assert len(Group.all_of(caches)) == 1  # of a draft model: a layer like others
    caches.kv_cache_groups[0].host_resident = True
    with pytest.raises(ValueError, match="KV in vLLM's host pool"):
        Group.all_of(caches)
    with pytest.raises(ValueError, match="tokens see later ones"):
        Group.all_of(_caches(config, non_causal=True))


def _sparse(cache_dtype: str, content: int | None) -> KVCacheConfig:
    """As vLLM has it of DeepSeek-V3.2 and GLM-5: latent entries, and an indexer with keys of its own."""
    latent = MLAAttentionSpec(
        block_size=64,
        num_kv_heads=1,
        head_size=576,
        dtype=torch.uint8 if content else torch.bfloat16,
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
        cache_dtype_str=cache_dtype,
        state_content_bytes=content,
    )
    indexer = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype=torch.uint8)
    specs = {
        f"model.layers.{number}.self_attn.{part}": spec
        for number in range(3)
        for part, spec in (("attn", latent), ("indexer.k_cache", indexer))
    }
    group = UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=specs)
    return KVCacheConfig(8, [], [KVCacheGroupSpec(list(specs), group)])


@pytest.mark.parametrize(("cache_dtype", "content"), [("auto", None), ("fp8_ds_mla", 656)])
def test_sparse_mla_is_two_caches_with_one_list_of_blocks(
    cache_dtype: str, content: int | None
) -> None:
    config = _config(cache_dtype)
    latent, indexer = _found(config, _sparse(cache_dtype, content))
    assert (latent.group, indexer.group) == (0, 0)
    assert latent.name != indexer.name
    assert [len(cache.layers) for cache in (latent, indexer)] == [3, 3]
    assert all("indexer" in layer for layer in indexer.layers)
    assert latent.kind.heads == indexer.kind.heads == 1
    if content:
        assert (latent.kind.content, latent.kind.k_size) == (HEADS, 64 * 656)
    else:
        assert (latent.kind.k_size, latent.kind.v_size) == (576, 0)
    # Its kernels keep the keys of a block first and then their scales: a token is no run of bytes.
    assert (indexer.kind.content, indexer.kind.k_size) == (HEADS, 64 * 132)


def test_states_are_whole_blocks() -> None:
    state = MambaSpec(
        block_size=64, shapes=((3, 8), (2, 4, 4)), dtypes=(torch.bfloat16, torch.float32)
    )
    config = _config("auto")
    config.parallel_config.tensor_parallel_size = 2
    caches = _caches(config)
    caches.kv_cache_groups.append(KVCacheGroupSpec(["model.layers.2.mixer"], state))
    groups = Group.all_of(caches)
    assert [group.is_state for group in groups] == [False, True]
    attention, states = _found(config, caches)
    assert (states.kind.content, states.kind.heads) == (PAGES, 2)
    assert states.kind.k_size == 3 * 8 * 2 + 2 * 4 * 4 * 4
    assert attention.kind.heads == 4
    assert "tensor_parallel_size" in layout_factors([attention, states], groups, 2)


def test_stages_are_one_cache_in_the_order_of_the_model() -> None:
    config = _config("auto")
    (kinds,) = kinds_of(config, _caches(config), _tensors(_caches(config)))
    (kind,) = set(kinds.values())
    names = [f"model.layers.{number}.attn" for number in range(7)]
    stages = [[dict.fromkeys(names[:3], kind)], [dict.fromkeys(names[3:7], kind)]]
    (cache,), division = caches_of(stages)
    assert cache.layers == tuple(names)
    assert division == Division(1, ((3, 4),))
    with pytest.raises(ValueError, match="not neighbours"):
        caches_of([[dict.fromkeys(names[::2], kind)], [dict.fromkeys(names[1::2], kind)]])


def _spec(kind: Any, cache_dtype: str, **more: Any) -> Any:
    config = _config(cache_dtype)
    return kind(
        block_size=16,
        num_kv_heads=2,
        head_size=32,
        dtype=kv_cache_dtype_str_to_dtype(cache_dtype, config.model_config),
        kv_quant_mode=get_kv_quant_mode(cache_dtype),
        **more,
    )


@pytest.mark.parametrize("layout", KVCacheLayout)
def test_layers_that_keep_another_type(layout: KVCacheLayout) -> None:
    """kv_cache_dtype_skip_layers: by number they are of the others' group, by their window not."""
    config, whole = _config("fp8"), config_of()
    whole.cache_config.kv_cache_layout = layout.name
    full = {name: _spec(FullAttentionSpec, "fp8") for name in _LAYERS}
    mixed = full | {_LAYERS[1]: _spec(FullAttentionSpec, "auto")}
    window = {"model.layers.2.attn": _spec(SlidingWindowSpec, "auto", sliding_window=64)}
    for specs in (mixed, full | window):
        caches = KVCacheConfig(8, [], get_kv_cache_groups(whole, specs))
        found = _found(config, caches)
        assert {cache.kind.element for cache in found} == {"fp8_e4m3", "bf16"}
        assert sorted(layer for cache in found for layer in cache.layers) == sorted(specs)


def test_a_window_with_what_a_draft_keeps_beside_it() -> None:
    config = _config("auto")
    spec = _spec(SlidingWindowSpec, "auto", sliding_window=64, extra_retained_tokens=2)
    (group,) = Group.all_of(KVCacheConfig(8, [], [KVCacheGroupSpec(["model.layers.0.attn"], spec)]))
    assert group.window == 66
    assert config  # as of all the others


@pytest.mark.parametrize(("numbers", "same"), [({}, True), ({"swa_num_key_value_heads": 8}, False)])
def test_more_workers_than_heads(numbers: dict[str, int], same: bool) -> None:
    """Where layers may have other numbers of heads than the model says, which worker has which is not
    known."""
    made = []
    for ranks in (4, 8):
        text = SimpleNamespace(rope_theta=1e4, num_key_value_heads=2, **numbers)
        config = _config("auto", hf_text_config=text)
        config.parallel_config.tensor_parallel_size = ranks
        made.append(_of(config, _caches(config), ranks))
    why = made[0].differs(made[1].hashes)
    assert (why == "") is same
    assert same or "tensor_parallel_size" in why


def test_layers_of_a_draft_follow_those_of_the_model() -> None:
    config = _config("auto")
    (kinds,) = kinds_of(config, _caches(config), _tensors(_caches(config)))
    (kind,) = set(kinds.values())
    drafts = ["mtp.layers.0.self_attn.attn", "mtp.layers.1.self_attn.attn"]
    names = [f"model.layers.{number}.attn" for number in range(12)]
    one = caches_of([[dict.fromkeys([*drafts, *names], kind)]])[0][0].layers
    stages = [dict.fromkeys(names[:5], kind)], [dict.fromkeys([*names[5:], *drafts], kind)]
    assert one == caches_of(stages)[0][0].layers == (*names, *drafts)


# --- names of engines ---


def _reference(engine: str) -> Reference:
    worker = Worker("10.0.0.1:1", "0" * 32)
    return Reference("pull", engine, "t", 32, {"weights": "a"}, (worker,), Division(1, ((2,),)))


@pytest.mark.parametrize("engine", ["with a space", "x" * 150, "größe", "", "a\nb", "名" * 150, "\ud800"])
def test_engine_ids_that_references_could_not_carry(engine: str) -> None:
    name = spoken_name(engine)
    assert is_name(name)
    assert Reference.from_params(_reference(name).to_params()).engine == name
    assert len(f"{name}:{1 << 16}:{'0' * 8}".encode()) <= 255  # an agent's
    assert spoken_name(f"{engine}2") != name


def test_an_engine_id_that_is_a_name_stays_as_it_is() -> None:
    for engine in ("prefill-0_dp3", hashlib.sha256().hexdigest(), "x" * 120):
        assert spoken_name(engine) == engine
        assert is_name(engine)


def test_weights_of_a_folder_differ_with_their_scales(tmp_path: Path) -> None:
    """Those of a checkpoint's fp8 KV are tensors of one number."""
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    texts = []
    for number, scale in enumerate((0.5, 0.25, 0.5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        tensors = {"k_scale": np.array([scale], np.float32), "weight": np.ones((64, 64), np.float32)}
        numpy.save_file(tensors, folder / "model.safetensors")
        texts.append(_fingerprint("fp8", model=str(folder)).hashes)
    assert texts[0] == texts[2] != texts[1]


def _write_experts(folder: Path, files: int, tensors: int) -> None:
    """Of as many bytes as the disk has holes for."""
    folder.mkdir()
    for file in range(files):
        header = {
            f"model.layers.{file}.{'mlp.experts' if number % 40 else 'attn'}.{number}.w": {
                "dtype": "BF16",
                "shape": [1024, 1024],
                "data_offsets": [number << 21, (number + 1) << 21],
            }
            for number in range(tensors)
        }
        text = json.dumps(header).encode()
        with (folder / f"model-{file}.safetensors").open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + (tensors << 21))


def test_a_model_of_many_experts_takes_few_reads_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system each takes a millisecond or more."""
    _write_experts(tmp_path / "model", 20, 1000)
    read, lock = os.pread, threading.Lock()
    reads, under_way, most = 0, 0, 0

    def slow(*arguments: Any) -> bytes:
        nonlocal reads, under_way, most
        with lock:
            reads, under_way = reads + 1, under_way + 1
            most = max(most, under_way)
        time.sleep(0.001)
        with lock:
            under_way -= 1
        return read(*arguments)

    monkeypatch.setattr(os, "pread", slow)
    once = weights_of(str(tmp_path / "model"), None)
    assert 4000 < reads < 5000  # all that are not an expert's, and so many of the others
    assert most > 16
    # A tensor that is no expert's is looked at wherever it is.
    with (tmp_path / "model" / "model-7.safetensors").open("r+b") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        file.seek(begin + (40 << 21) + (1 << 20))
        file.write(b"changed")
    assert weights_of(str(tmp_path / "model"), None) != once
