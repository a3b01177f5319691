"""Further models of a megabyte with random weights, as tiny_model.py writes its Llama: latent attention as
DeepSeek-V3 has it, linear attention with states as Qwen3-Next has it, and a draft of EAGLE for that
Llama."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import HEAD_SIZE, KV_HEADS, LAYERS, VOCABULARY, write_tiny_model

_HIDDEN = 128
_INNER = 256
_HEADS = 4
_LATENT, _ROPE, _NOPE, _VALUE = 512, 64, 128, 128
_STATE_HEAD = 64  # one that vLLM's kernels for CPUs take
_KEY_HEADS, _VALUE_HEADS = 2, 4
_CONV = 4
_EXPERTS, _EXPERT_INNER = 4, 64
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": _HEADS,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}

Shapes = dict[str, tuple[int, ...]]


def write_latent_model(folder: Path, seed: int) -> None:
    """One entry of 576 numbers a token, in place of keys and values of heads."""
    config = _COMMON | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "num_key_value_heads": _HEADS,
        "kv_lora_rank": _LATENT,
        "q_lora_rank": None,
        "qk_nope_head_dim": _NOPE,
        "qk_rope_head_dim": _ROPE,
        "v_head_dim": _VALUE,
        "first_k_dense_replace": LAYERS,
        "moe_intermediate_size": _EXPERT_INNER,
        "n_routed_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    }
    shapes = _outside()
    for layer in range(LAYERS):
        shapes |= _within(
            layer,
            {
                "self_attn.q_proj.weight": (_HEADS * (_NOPE + _ROPE), _HIDDEN),
                "self_attn.kv_a_proj_with_mqa.weight": (_LATENT + _ROPE, _HIDDEN),
                "self_attn.kv_a_layernorm.weight": (_LATENT,),
                "self_attn.kv_b_proj.weight": (_HEADS * (_NOPE + _VALUE), _LATENT),
                "self_attn.o_proj.weight": (_HIDDEN, _HEADS * _VALUE),
            }
            | _dense(),
        )
    _write(folder, config, shapes, seed, 0.1)


def write_state_model(folder: Path, seed: int) -> None:
    """Layers with a state in place of KV, and between them layers of full attention."""
    kinds = ["linear_attention", "full_attention"] * (LAYERS // 2)
    config = _COMMON | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "float32",
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "layer_types": kinds,
        "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": _CONV,
        "linear_key_head_dim": _STATE_HEAD,
        "linear_value_head_dim": _STATE_HEAD,
        "linear_num_key_heads": _KEY_HEADS,
        "linear_num_value_heads": _VALUE_HEADS,
        "decoder_sparse_step": 1,
        # vLLM wants one with experts.
        "mlp_only_layers": list(range(LAYERS - 1)),
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": _EXPERT_INNER,
        "shared_expert_intermediate_size": _EXPERT_INNER,
        "norm_topk_prob": True,
    }
    keys, values = _KEY_HEADS * _STATE_HEAD, _VALUE_HEADS * _STATE_HEAD
    linear: Shapes = {
        "linear_attn.dt_bias": (_VALUE_HEADS,),
        "linear_attn.A_log": (_VALUE_HEADS,),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, _CONV),
        "linear_attn.in_proj_qkvz.weight": (2 * keys + 2 * values, _HIDDEN),
        "linear_attn.in_proj_ba.weight": (2 * _VALUE_HEADS, _HIDDEN),
        "linear_attn.norm.weight": (_STATE_HEAD,),
        "linear_attn.out_proj.weight": (_HIDDEN, values),
    }
    full: Shapes = {
        "self_attn.q_proj.weight": (2 * _HEADS * HEAD_SIZE, _HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_SIZE, _HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_SIZE, _HIDDEN),
        "self_attn.o_proj.weight": (_HIDDEN, _HEADS * HEAD_SIZE),
        "self_attn.q_norm.weight": (HEAD_SIZE,),
        "self_attn.k_norm.weight": (HEAD_SIZE,),
    }
    shapes = _outside()
    for layer, kind in enumerate(kinds):
        attention = linear if kind == "linear_attention" else full
        mlp = _experts() if layer == LAYERS - 1 else _dense()
        shapes |= _within(layer, attention | mlp)
    _write(folder, config, shapes, seed, 0.1)


def write_draft_model(folder: Path, seed: int) -> None:
    """Drafts for write_tiny_model's Llama: badly, for its weights are random, too."""
    write_tiny_model(folder, seed)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 1}
    attention: Shapes = {
        f"self_attn.{name}_proj.weight": (heads * HEAD_SIZE, _HIDDEN)
        for name, heads in (("q", _HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    }
    layer = attention | {"self_attn.o_proj.weight": (_HIDDEN, _HEADS * HEAD_SIZE)} | _dense()
    shapes = {f"layers.0.{name}": shape for name, shape in layer.items()}
    shapes |= {"layers.0.post_attention_layernorm.weight": (_HIDDEN,)}
    shapes |= {"fc.weight": (_HIDDEN, 2 * _HIDDEN)}
    _write(folder, config, shapes, seed, 0.2)


def _outside() -> Shapes:
    table = (VOCABULARY, _HIDDEN)
    return {"model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": (_HIDDEN,)}


def _within(layer: int, shapes: Shapes) -> Shapes:
    norms = {f"{name}_layernorm.weight": (_HIDDEN,) for name in ("input", "post_attention")}
    return {f"model.layers.{layer}.{name}": shape for name, shape in (shapes | norms).items()}


def _dense(prefix: str = "mlp", inner: int = _INNER) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (inner, _HIDDEN),
        f"{prefix}.up_proj.weight": (inner, _HIDDEN),
        f"{prefix}.down_proj.weight": (_HIDDEN, inner),
    }


def _experts() -> Shapes:
    shapes: Shapes = {"mlp.gate.weight": (_EXPERTS, _HIDDEN), "mlp.shared_expert_gate.weight": (1, _HIDDEN)}
    shapes |= _dense("mlp.shared_expert", _EXPERT_INNER)
    for expert in range(_EXPERTS):
        shapes |= _dense(f"mlp.experts.{expert}", _EXPERT_INNER)
    return shapes


def _write(folder: Path, config: Mapping[str, Any], shapes: Shapes, seed: int, deviation: float) -> None:
    """float32, of which vLLM makes what the configuration says."""
    from safetensors.numpy import save_file  # not everywhere that this file is collected

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(seed)
    weights = {
        # Qwen's norms add 1 to their weights, all others multiply by them.
        name: np.full(shape, _norm(config, name), np.float32)
        if "norm" in name
        else (deviation * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _norm(config: Mapping[str, Any], name: str) -> float:
    adds_one = config["model_type"] == "qwen3_next" and "linear_attn" not in name
    return 0.0 if adds_one else 1.0


Writer = Callable[[Path, int], None]
