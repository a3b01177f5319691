"""Fingerprints go by what is in a block, not by the names that it was asked for by. No engine is
started."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: tests/python/environment has it")
torch = pytest.importorskip("torch")

# pylint: disable=wrong-import-position
from kvxfer.vllm.caches import Group  # noqa: E402
from kvxfer.vllm.fingerprint import Fingerprint  # noqa: E402
from kvxfer.vllm.reference import Reference, Worker, is_name, spoken_name  # noqa: E402
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    get_kv_quant_mode,
)

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


def _fingerprint(cache_dtype: str, **config: Any) -> Fingerprint:
    made = _config(cache_dtype, **config)
    return Fingerprint(made, _caches(made), "")


@pytest.mark.parametrize(
    ("one", "other"), [("auto", "bfloat16"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")]
)
def test_names_that_mean_the_same(one: str, other: str) -> None:
    assert _fingerprint(one).differs(_fingerprint(other).text) == ""
    assert _fingerprint(one).of_model == _fingerprint(other).of_model


@pytest.mark.parametrize(
    ("one", "other"),
    [("auto", "float16"), ("auto", "fp8"), ("fp8", "fp8_e5m2"), ("bfloat16", "fp8_e4m3")],
)
def test_names_that_mean_something_else(one: str, other: str) -> None:
    why = _fingerprint(one).differs(_fingerprint(other).text)
    assert "lays out the KV cache of this model otherwise" in why
    assert "--kv-cache-dtype" in why


def test_a_model_of_another_type_is_another() -> None:
    """float16 in the cache of both, computed from weights that are rounded otherwise."""
    one = _fingerprint("float16", dtype=torch.float16)
    assert "another model" in one.differs(_fingerprint("float16").text)
    assert "another model" in one.differs(_fingerprint("auto").text)


def test_a_model_that_was_changed_is_another() -> None:
    plain = _fingerprint("auto")
    changed = _fingerprint("auto", hf_overrides={"num_experts_per_tok": 2})
    assert "another model" in plain.differs(changed.text)
    same = [_fingerprint("auto", hf_overrides=json.loads) for _ in range(2)]
    assert same[0].differs(same[1].text) == ""


# --- what has more in a block than numbers ---

_SCALED = (
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "turboquant_4bit_nc",
    "ultraquant_4bit",
)  # fmt: skip


@pytest.mark.parametrize("cache_dtype", _SCALED)
def test_scales_beside_numbers_are_refused_by_name(cache_dtype: str) -> None:
    config = _config(cache_dtype)
    with pytest.raises(ValueError, match=f"does not support kv_cache_dtype '{cache_dtype}'"):
        Group.all_of(config, _caches(config))


@pytest.mark.parametrize(
    ("cache_dtype", "element"),
    [("auto", "bf16"), ("float16", "fp16"), ("fp8", "fp8_e4m3"), ("fp8_e5m2", "fp8_e5m2")],
)
def test_elements(cache_dtype: str, element: str) -> None:
    config = _config(cache_dtype)
    (group,) = Group.all_of(config, _caches(config))
    assert group.element == element


@pytest.mark.parametrize(
    "spec",
    [{"num_head_slots": 2}, {"state_content_bytes": 656}, {"tokens_per_state": 4}],
    ids=lambda spec: next(iter(spec)),
)
def test_other_ways_to_lay_out_a_block_are_refused_by_name(spec: dict[str, Any]) -> None:
    config = _config("auto")
    with pytest.raises(ValueError, match=f"does not support how KV lies .*{next(iter(spec))} is"):
        Group.all_of(config, _caches(config, **spec))


def test_what_vllm_marks_as_another_kind_is_refused() -> None:
    config = _config("auto")
    for mark in ({"is_eagle_group": True}, {"host_resident": True}):
        caches = _caches(config)
        for name, value in mark.items():
            setattr(caches.kv_cache_groups[0], name, value)
        with pytest.raises(ValueError, match="KV (of a draft model|in vLLM's host pool)"):
            Group.all_of(config, caches)
    with pytest.raises(ValueError, match="tokens see later ones"):
        Group.all_of(config, _caches(config, non_causal=True))


# --- names of engines ---


def _reference(engine: str) -> Reference:
    return Reference("pull", engine, "t", 32, "1.a.b", (Worker("10.0.0.1:1", "0" * 32),))


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
        texts.append(_fingerprint("fp8", model=str(folder)).text)
    assert texts[0] == texts[2] != texts[1]
