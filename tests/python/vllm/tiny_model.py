"""A Llama of 1 MB with random weights, written with numpy alone: importing torch to write it would
cost the test more than everything else that it does before the engines start."""

import json
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = 4
KV_HEADS = 2
HEAD_SIZE = 32
VOCABULARY = 512
ELEMENT_BYTES = 4  # float32: near ties between tokens do not occur
_HIDDEN = 128
_INNER = 256
_HEADS = 4


def kv_block_bytes(block_size: int) -> int:
    """The bytes of one KV block in one layer: K and V of every head and token."""
    return 2 * KV_HEADS * block_size * HEAD_SIZE * ELEMENT_BYTES


def write_tiny_model(folder: Path, seed: int, window: int | None = None) -> None:
    """Writes config.json and model.safetensors. Weights this large (deviation 0.2) make a greedy
    token depend on every token before it; those of a usual initialisation repeat one token.

    With a window, every other layer, the first among them, sees only so many tokens: vLLM keeps the
    KV cache in two groups, each with blocks of its own, and frees what has left the window."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(window)))
    from safetensors.numpy import save_file  # not everywhere that this file is collected

    save_file(_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})


def _config(window: int | None) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }
    if window is None:
        return config
    types = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    return config | {"sliding_window": window, "layer_types": types}


def _weights(seed: int) -> dict[str, Any]:
    shapes = {"model.embed_tokens": (VOCABULARY, _HIDDEN), "lm_head": (VOCABULARY, _HIDDEN)}
    norms = ["model.norm"]
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        norms += [f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm"]
        shapes |= {
            f"{prefix}.self_attn.q_proj": (_HEADS * HEAD_SIZE, _HIDDEN),
            f"{prefix}.self_attn.k_proj": (KV_HEADS * HEAD_SIZE, _HIDDEN),
            f"{prefix}.self_attn.v_proj": (KV_HEADS * HEAD_SIZE, _HIDDEN),
            f"{prefix}.self_attn.o_proj": (_HIDDEN, _HEADS * HEAD_SIZE),
            f"{prefix}.mlp.gate_proj": (_INNER, _HIDDEN),
            f"{prefix}.mlp.up_proj": (_INNER, _HIDDEN),
            f"{prefix}.mlp.down_proj": (_HIDDEN, _INNER),
        }
    random = np.random.default_rng(seed)
    weights = {
        f"{name}.weight": (0.2 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    weights |= {f"{name}.weight": np.ones(_HIDDEN, np.float32) for name in norms}
    return weights
