"""Dimensions of a transformer for the calculator."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from perf_callbacks.kernel.settings.config import ConfigError

LARGEST = 10**18
"""Largest dimension, and largest number in an option of a command. Results of such numbers fit into a float."""


class MissingError(LookupError):
    """A required dimension is unknown. The message is its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Dimensions of a transformer. An omitted field is unknown, or has the default named here.

    >>> Architecture(layers=2, hidden=64, heads=4, vocab=100).parameters
    111104
    """

    layers: int | None = None
    hidden: int | None = None
    """Width of the model."""
    heads: int | None = None
    """None: attention is as wide as the model, with as many heads of keys and values as of queries."""
    head_dim: int | None = None
    """Width of a head. None: `hidden` divided by `heads`."""
    kv_heads: int | None = None
    """Heads of keys and values. None: equal to `heads`."""
    ffn: int | None = None
    """Width of the MLP, or of one expert. None: 4 x hidden."""
    gated: bool = False
    """True: the MLP has three matrices (SwiGLU and similar). False: two."""
    experts: int = 0
    """Number of experts that replace the MLP of a layer; 0: a single MLP."""
    active_experts: int = 0
    """Number of experts that process a token."""
    vocab: int | None = None
    tied: bool = False
    """True: the output head is the transposed embedding."""
    outputs: int | None = None
    """Width of the output head; 0: there is none. None: the vocabulary."""
    positions: int = 0
    """Number of learned position embeddings."""
    params: int | None = None
    """Number of all parameters, if known exactly. None: the sum of the matrices."""

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
        """Width of all heads together."""
        return (self.heads or 1) * self._head_width

    @property
    def layer_matrices(self) -> int:
        """Elements of the matrices in a layer that multiply a token: attention, router, MLP or active experts."""
        return self._attention + self._expert * (self.active_experts or 1) + self._router

    @property
    def idle_parameters(self) -> int:
        """Parameters of experts that don't process a token."""
        if not self.experts:
            return 0
        return known(self.layers, "layers") * self._expert * (self.experts - self.active_experts)

    @property
    def embedding(self) -> int:
        """Elements of the token embedding."""
        return known(self.vocab, "vocab") * self.width

    @property
    def head(self) -> int:
        """Elements of the output head."""
        return self.embedding if self.outputs is None else self.outputs * self.width

    @property
    def parameters(self) -> int:
        """Number of all parameters: as given, or the sum of all matrices.

        The sum lacks biases and norms (commonly 0.1 %).
        """
        if self.params is not None:
            return self.params
        stack = known(self.layers, "layers") * self.layer_matrices + self.idle_parameters
        return stack + self.embedding + (0 if self.tied else self.head) + self.positions * self.width

    @property
    def width(self) -> int:
        """Hidden size. Raises `MissingError` if unknown."""
        return known(self.hidden, "hidden")

    @property
    def mlp_width(self) -> int:
        """Width of the MLP, or of one expert."""
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

    @property
    def _router(self) -> int:
        return self.width * self.experts


def known(value: int | None, name: str) -> int:
    """Return the value. Raises `MissingError` with the name if the value is None."""
    if value is None:
        raise MissingError(name)
    return value


@dataclass(frozen=True, slots=True)
class Family:
    """Facts about a Hugging Face `model_type` that config.json may lack."""

    gated: bool = True
    tied: bool = False
    """Default if config.json lacks `tie_word_embeddings`."""
    required: tuple[str, ...] = ()
    """Fields that config.json must have, because the class of the model has its own defaults."""
    positions: str | None = None
    """Name of the field with the number of position embeddings."""


_GROUPED = ("num_key_value_heads",)
FAMILIES = {
    "bloom": Family(gated=False, tied=True),
    "gemma": Family(tied=True, required=("num_key_value_heads", "head_dim")),
    "gemma2": Family(tied=True, required=("num_key_value_heads", "head_dim")),
    "gpt2": Family(gated=False, tied=True, positions="n_positions"),
    "gpt_neox": Family(gated=False, required=("intermediate_size",)),
    "granite": Family(),
    "llama": Family(required=("intermediate_size",)),
    "mistral": Family(required=(*_GROUPED, "intermediate_size")),
    "mixtral": Family(required=(*_GROUPED, "intermediate_size", "num_local_experts", "num_experts_per_tok")),
    "olmo2": Family(required=("intermediate_size",)),
    "phi": Family(gated=False, required=("intermediate_size",)),
    "qwen2": Family(required=(*_GROUPED, "intermediate_size")),
    "qwen3": Family(required=(*_GROUPED, "intermediate_size", "head_dim")),
    "starcoder2": Family(gated=False, tied=True, required=(*_GROUPED, "intermediate_size")),
}
"""Known families, each compared with a count of the running model."""

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
    """Read the fields of an `Architecture` from the config.json of a Hugging Face model.

    >>> dimensions({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257})["layers"]
    12
    """
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        known_kinds = ", ".join(FAMILIES)
        raise ConfigError(f"model_type: got {kind!r}, wanted one of {known_kinds}; give the dimensions of others.")
    found = {name: _first(config, spellings) for name, spellings in _NAMES.items()}
    for name in (*(_NAMES[name][0] for name in ("layers", "hidden", "heads", "vocab")), *family.required):
        own = next((ours for ours, spellings in _NAMES.items() if name in spellings), name)
        if found.get(own) is None:
            raise ConfigError(f"{name}: is missing in config.json, wanted a whole number.")
    outputs, tied = _outputs(config), config.get("tie_word_embeddings", family.tied)
    if not isinstance(tied, bool):
        raise ConfigError(f"tie_word_embeddings: got {tied!r}, wanted true or false.")
    found |= {"gated": family.gated, "tied": tied and outputs is None, "outputs": outputs}
    if family.positions:
        found["positions"] = _first(config, (family.positions,))
    return {name: value for name, value in found.items() if value is not None}


_HEADS = ("ForCausalLM", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def _outputs(config: Mapping[str, Any]) -> int | None:
    """Return the width of the output head, by the model's class. None: the vocabulary, or no class is named."""
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
