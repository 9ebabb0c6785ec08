"""Dimensions of a transformer, from which its FLOPs are computed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from perf_callbacks.kernel.settings.config import ConfigError

LARGEST = 10**18
"""Largest value of a dimension, or of a number in a command's option.

Results that are computed from such values fit into a float.
"""


class MissingError(LookupError):
    """Raised if a required dimension is unknown. The error message is the name of the dimension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Dimensions of a transformer. None means unknown, except in fields that give None another meaning.

    >>> Architecture(layers=2, hidden=64, heads=4, vocab=100).parameters
    111104
    """

    layers: int | None = None
    hidden: int | None = None
    """Width of the model (hidden size)."""
    heads: int | None = None
    """Number of attention heads. None means that queries, keys and values are each as wide as the model."""
    head_dim: int | None = None
    """Width of an attention head. None means `hidden` divided by `heads`."""
    kv_heads: int | None = None
    """Number of heads of keys and values. None means the same number as `heads`."""
    ffn: int | None = None
    """Width of the MLP, or of one expert. None means 4 x `hidden`."""
    gated: bool = False
    """True if the MLP has three matrices, as with SwiGLU. False if the MLP has two matrices."""
    experts: int = 0
    """Number of experts that replace the MLP of a layer. 0 means that each layer has a single MLP."""
    active_experts: int = 0
    """Number of experts in a layer that process a token."""
    vocab: int | None = None
    tied: bool = False
    """True if the output head is the transposed embedding."""
    outputs: int | None = None
    """Width of the output head. 0 means no output head. None means the size of the vocabulary."""
    positions: int = 0
    """Number of learned position embeddings."""
    params: int | None = None
    """Number of all parameters, if known exactly. None means the sum of all matrices' elements."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.default == 0 or field.name == "outputs" else 1
            if value is None or isinstance(value, bool):
                continue
            if value < least:
                raise ConfigError(f"{field.name}: got {value!r}, wanted a whole number from {least} on.")
            if value > LARGEST:
                raise ConfigError(f"{field.name}: got {float(LARGEST):g} or more, wanted a smaller whole number.")
        if not 0 <= self.active_experts <= self.experts or (self.experts and not self.active_experts):
            raise ConfigError(f"active_experts: got {self.active_experts}, wanted 1 to {self.experts} of the experts.")
        if self.heads and self.heads % (self.kv_heads or 1):
            raise ConfigError(f"kv_heads: got {self.kv_heads}, wanted a divisor of the {self.heads} heads.")
        if self.heads and self.hidden and not self.head_dim and self.hidden % self.heads:
            raise ConfigError(f"heads: got {self.heads}, wanted a divisor of hidden, {self.hidden}, or head_dim.")

    @property
    def attention_width(self) -> int:
        return (self.heads or 1) * self._head_width

    @property
    def layer_matrices(self) -> int:
        """Number of a layer's matrix elements that multiply a token: attention, router, and MLP or active experts."""
        return self._attention + self._expert * (self.active_experts or 1) + self.width * self.experts

    @property
    def idle_parameters(self) -> int:
        if not self.experts:
            return 0
        return known(self.layers, "layers") * self._expert * (self.experts - self.active_experts)

    @property
    def embedding(self) -> int:
        return known(self.vocab, "vocab") * self.width

    @property
    def head(self) -> int:
        return self.embedding if self.outputs is None else self.outputs * self.width

    @property
    def parameters(self) -> int:
        """Number of all parameters, which is `params` or else the sum of all matrices' elements.

        The sum leaves out biases and norms, which are commonly 0.1 % of the parameters.
        """
        if self.params is not None:
            return self.params
        stack = known(self.layers, "layers") * self.layer_matrices + self.idle_parameters
        return stack + self.embedding + (0 if self.tied else self.head) + self.positions * self.width

    @property
    def width(self) -> int:
        """Hidden size of the model. `MissingError` is raised if the hidden size is unknown."""
        return known(self.hidden, "hidden")

    @property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.width

    @property
    def _head_width(self) -> int:
        return self.head_dim or self.width // (self.heads or 1)

    @property
    def _attention(self) -> int:
        keys_and_values = 2 * (self.kv_heads or self.heads or 1) * self._head_width
        return self.width * (2 * self.attention_width + keys_and_values)

    @property
    def _expert(self) -> int:
        return (3 if self.gated else 2) * self.width * self.mlp_width


def known(value: int | None, name: str) -> int:
    """Return the value of a dimension. If the value is None, raise `MissingError` with the dimension's name."""
    if value is None:
        raise MissingError(name)
    return value


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about a Hugging Face `model_type` that may be missing in config.json."""

    gated: bool = True
    tied: bool = False
    """Default for `tie_word_embeddings` if config.json lacks this field."""
    required: tuple[str, ...] = ()
    """Fields of `Architecture` that have no known default, so config.json must contain them."""
    positions: str | None = None
    """Name of the field in config.json with the number of position embeddings."""


FAMILIES = {
    "bloom": Family(gated=False, tied=True),
    "gemma": Family(tied=True, required=("kv_heads", "head_dim")),
    "gemma2": Family(tied=True, required=("kv_heads", "head_dim")),
    "gpt2": Family(gated=False, tied=True, positions="n_positions"),
    "gpt_neox": Family(gated=False, required=("ffn",)),
    "granite": Family(),
    "llama": Family(required=("ffn",)),
    "mistral": Family(required=("kv_heads", "ffn")),
    "mixtral": Family(required=("kv_heads", "ffn", "experts", "active_experts")),
    "olmo2": Family(required=("ffn",)),
    "phi": Family(gated=False, required=("ffn",)),
    "qwen2": Family(required=("kv_heads", "ffn")),
    "qwen3": Family(required=("kv_heads", "ffn", "head_dim")),
    "starcoder2": Family(gated=False, tied=True, required=("kv_heads", "ffn")),
}
"""Known families of models, by `model_type`.

For each family, the computed FLOPs were compared with FLOPs that were counted while a model of the family ran.
"""

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "n_embd", "n_embed"),
    "heads": ("num_attention_heads", "n_head"),
    "head_dim": ("head_dim",),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts",),
    "active_experts": ("num_experts_per_tok",),
}


def dimensions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `Architecture` from the config.json of a Hugging Face model.

    >>> dimensions({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})["layers"]
    12
    """
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        known_kinds = ", ".join(FAMILIES)
        raise ConfigError(f"model_type: got {kind!r}, wanted one of {known_kinds}; give the dimensions of others.")
    found = {name: _first(config, spellings) for name, spellings in _NAMES.items()}
    for name in ("layers", "hidden", "heads", "vocab", *family.required):
        if found[name] is None:
            raise ConfigError(f"{_NAMES[name][0]}: is missing in config.json, wanted a whole number.")
    outputs, tied = _outputs(config), config.get("tie_word_embeddings", family.tied)
    if not isinstance(tied, bool):
        raise ConfigError(f"tie_word_embeddings: got {tied!r}, wanted true or false.")
    found |= {"gated": family.gated, "tied": tied and outputs is None, "outputs": outputs}
    if family.positions:
        found["positions"] = _first(config, (family.positions,))
    return {name: value for name, value in found.items() if value is not None}


_HEADS = ("ForCausalLM", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def _outputs(config: Mapping[str, Any]) -> int | None:
    """Return the width of the output head, which depends on the model's class.

    None means the size of the vocabulary.
    """
    names = config.get("architectures")
    if not names:
        return None
    name = names[0] if isinstance(names, list) and isinstance(names[0], str) else ""
    if name.endswith(_HEADS[:2]):
        return None
    if name.endswith(_HEADS[2:4]):
        labels = config.get("id2label")
        return _first(config, ("num_labels",)) or (len(labels) if isinstance(labels, dict) else 2)
    if name.endswith(_HEADS[4]):
        return 2  # the first and the last token of the answer
    if re.fullmatch(r"(?!.*DoubleHeads)\w+Model", name):
        return 0
    raise ConfigError(f"architectures: got {names!r}, wanted a name that ends in {', '.join(_HEADS)} or Model.")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = [config[name] for name in names if config.get(name) is not None]
    if values and (not isinstance(values[0], int) or isinstance(values[0], bool)):
        raise ConfigError(f"{names[0]}: got {values[0]!r}, wanted a whole number.")
    return values[0] if values else None
