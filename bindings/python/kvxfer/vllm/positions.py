"""All that makes vLLM compute other keys for a token at a position: the model's configuration, and options
of the engine, above all ``max_model_len``."""

from __future__ import annotations

from typing import Any

# How positions are encoded with factors that depend on how many there are.
_BY_LENGTH = ("longrope", "dynamic")
# Models (``model_type``) whose embedding of positions is made for ``max_model_len`` of them, where others
# take the number from their configuration.
_MADE_FOR_MAX_MODEL_LEN = ("minimax_m2", "plamo3")
# From so many tokens on Llama 4 scales the queries of its layers without positions, by default.
_LLAMA4_UNSCALED = 32768


def positions(model: Any) -> dict[str, Any]:
    """``model``: vLLM's ModelConfig. The same before vLLM has built the model in this process and
    after, although building one writes into its configuration."""
    config = model.hf_text_config
    names = ("rope_theta", "sliding_window", "layer_types", "rotary_dim", "dual_chunk_attention_config")
    described = {name: getattr(config, name, None) for name in names}
    for name in ("rope_parameters", "rope_scaling"):
        ropes = _ropes(getattr(config, name, None))
        described[name] = {layers: _as_given(rope, config) for layers, rope in ropes.items()}
        described[f"{name} by length"] = {
            layers: _by_length(rope, model)
            for layers, rope in ropes.items()
            if _kind(rope) in _BY_LENGTH
        }
    if _model_type(config).startswith("llama4"):
        described["scaled queries"] = _scaled_queries(model)
    return described


def _model_type(config: Any) -> str:
    return str(getattr(config, "model_type", ""))


def _ropes(rope: Any) -> dict[str, dict[str, Any]]:
    """By the kind of layer that has it; "": all."""
    if not isinstance(rope, dict):
        return {}
    nested = {str(layers): each for layers, each in rope.items() if isinstance(each, dict)}
    return nested or {"": rope}


def _kind(rope: dict[str, Any]) -> str:
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    return "longrope" if kind == "su" else kind


def _as_given(rope: dict[str, Any], config: Any) -> dict[str, Any]:
    """Without what models write into it when they are built, all of which follows from the rest."""
    given = {name: value for name, value in rope.items() if name not in ("rope_type", "type")}
    kind = _kind(rope)
    given["rope_type"] = "yarn" if kind in ("deepseek_yarn", "deepseek_llama_scaling") else kind
    if getattr(config, "rotary_dim", None) is not None or given.get("partial_rotary_factor") == 1.0:
        given.pop("partial_rotary_factor", None)
    return given


def _by_length(rope: dict[str, Any], model: Any) -> list[Any]:
    config = model.hf_text_config
    trained = getattr(config, "max_position_embeddings", None)
    described: list[Any] = [trained]
    original = rope.get("original_max_position_embeddings")
    if original is None:
        original = getattr(config, "original_max_position_embeddings", None) or trained
    if _kind(rope) == "longrope" and original is not None:
        # vLLM then takes the long factors, for all tokens of all requests.
        described += [original, model.max_model_len > original]
    if _model_type(config) in _MADE_FOR_MAX_MODEL_LEN:
        described.append(model.max_model_len)
    return described


def _scaled_queries(model: Any) -> bool:
    """What layers compute from other queries are keys of the next ones."""
    option = "attn_temperature_tuning"
    for given in (model.override_generation_config, model.try_get_generation_config()):
        if option in given:
            return bool(given[option])
    return bool(model.max_model_len > _LLAMA4_UNSCALED)
