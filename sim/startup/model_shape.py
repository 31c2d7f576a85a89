"""What the rules need to know of a model, and how its config.json is read."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's sizes; UNSET is "not known", and a rule that needs it says so.

    `max_position_embeddings` is what verl reads; `derived_max_model_len` is what vLLM makes of the same file, which
    differs where RoPE scaling stretches the context or another key shortens it.
    """

    max_position_embeddings: int | UnsetType = UNSET
    derived_max_model_len: int | UnsetType = UNSET
    model_max_length: int | UnsetType = UNSET
    num_attention_heads: int | UnsetType = UNSET
    num_key_value_heads: int | UnsetType = UNSET
    num_hidden_layers: int | UnsetType = UNSET
    hidden_size: int | UnsetType = UNSET
    head_dim: int | UnsetType = UNSET
    intermediate_size: int | UnsetType = UNSET
    is_moe: bool = False
    is_encoder_decoder: bool = False
    is_vision: bool = False


UNKNOWN_MODEL = ModelShape()

_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
_LENGTH_WITHOUT_KEYS = 2048
_ROPE_ALREADY_SCALED = frozenset(("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"))


def model_from_config(config: Mapping[str, Any]) -> ModelShape:
    """A model's shape from its Hugging Face `config.json`, read as vLLM and verl read it."""
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), Mapping) else dict(config)

    def known(*names: str) -> int | UnsetType:
        return next((text[name] for name in names if isinstance(text.get(name), int)), UNSET)

    heads, hidden = known("num_attention_heads", "n_head"), known("hidden_size", "n_embd")
    head_dim, kv_heads = known("head_dim"), known("num_key_value_heads")
    if head_dim is UNSET and isinstance(heads, int) and isinstance(hidden, int):
        head_dim = hidden // heads
    own_positions = config.get("max_position_embeddings", text.get("max_position_embeddings"))
    return ModelShape(
        max_position_embeddings=own_positions if isinstance(own_positions, int) else UNSET,
        derived_max_model_len=_derived_length(text),
        model_max_length=known("model_max_length"),
        num_attention_heads=heads,
        num_key_value_heads=heads if kv_heads is UNSET else kv_heads,
        num_hidden_layers=known("num_hidden_layers", "n_layer"),
        hidden_size=hidden,
        head_dim=head_dim,
        intermediate_size=known("intermediate_size"),
        is_moe=any(name in text for name in ("num_experts", "n_routed_experts", "num_local_experts")),
        is_encoder_decoder=bool(config.get("is_encoder_decoder", False)),
        is_vision="vision_config" in config,
    )


def _derived_length(text: Mapping[str, Any]) -> int:
    """The context as vLLM derives it: the shortest length that the file names, stretched by RoPE scaling."""
    lengths = [text[key] for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    derived: float = text.get("model_max_length") or min(lengths, default=_LENGTH_WITHOUT_KEYS)
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if rope and "gemma3" not in str(text.get("model_type")):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPE_ALREADY_SCALED:
            derived *= rope.get("factor") or 1.0
    return int(derived)
