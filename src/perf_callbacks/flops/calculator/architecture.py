"""Dimensions of a transformer, from which its FLOPs are computed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from perf_callbacks.kernel.settings.config import ConfigError

LARGEST = 10**18
"""Largest dimension, or number in a command's option, so that the results fit into a float."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Dimensions of a transformer. None means unknown, except in fields that give None another meaning."""

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    """None means that queries, keys and values are each as wide as the model."""
    head_dim: int | None = None
    """None means `hidden` divided by `heads`."""
    kv_heads: int | None = None
    """None means as many as `heads`."""
    ffn: int | None = None
    """Width of the MLP, or of one expert. None means 4 x `hidden`."""
    gated: bool = False
    """The MLP has three matrices, as with SwiGLU, and not two."""
    experts: int = 0
    active_experts: int = 0
    """Experts in a layer that process a token. Without experts, each layer has a single MLP."""
    vocab: int | None = None
    tied: bool = False
    """True if the output head is the transposed embedding."""
    outputs: int | None = None
    """Width of the output head. 0 means no output head. None means the size of the vocabulary."""
    positions: int = 0
    """Number of learned position embeddings."""
    params: int | None = None
    """Number of all parameters. None means the sum of all matrices' elements."""

    def __post_init__(self) -> None:
        sizes = {field: getattr(self, field.name) for field in fields(self)}
        least = {field: int(field.default is None and field.name != "outputs") for field in sizes}
        possible = all(least[field] <= size <= LARGEST for field, size in sizes.items() if size is not None)
        possible &= 0 < self.active_experts <= self.experts or self.active_experts == self.experts == 0
        possible &= not (self.heads or 0) % (self.kv_heads or 1)
        if not possible or (not self.head_dim and (self.hidden or 0) % (self.heads or 1)):
            raise ConfigError("the model: got sizes that don't fit, wanted hidden % heads == heads % kv_heads == 0.")

    @property
    def width(self) -> int:
        """Hidden size. `LookupError` is raised if it is unknown."""
        return known(self.hidden, "hidden")

    @property
    def mlp_width(self) -> int:
        return self.ffn or 4 * self.width

    @property
    def attention_width(self) -> int:
        return (self.heads or 1) * self.head_dim if self.head_dim else self.width

    @property
    def layer_matrices(self) -> int:
        """Number of a layer's matrix elements that multiply a token: attention, router, and MLP or active experts."""
        heads, queries = self.heads or 1, self.attention_width
        attention = self.width * 2 * (queries + (self.kv_heads or heads) * (queries // heads))
        return attention + self._expert * (self.active_experts or 1) + self.width * self.experts

    @property
    def idle_parameters(self) -> int:
        """Number of parameters in the experts that don't process a given token."""
        return known(self.layers, "layers") * self._expert * (self.experts - self.active_experts) if self.experts else 0

    @property
    def looked_up(self) -> int:
        """Number of parameters in embeddings that multiply nothing."""
        return self.positions * self.width + (0 if self.tied else self.embedding)

    @property
    def embedding(self) -> int:
        return known(self.vocab, "vocab") * self.width

    @property
    def head(self) -> int:
        return self.embedding if self.outputs is None else self.outputs * self.width

    @property
    def parameters(self) -> int:
        """`params`, or the sum of all matrices' elements, without biases and norms (commonly 0.1 %)."""
        if self.params is not None:
            return self.params
        stack = known(self.layers, "layers") * self.layer_matrices + self.idle_parameters
        return stack + self.embedding + (0 if self.tied else self.head) + self.positions * self.width

    @property
    def _expert(self) -> int:
        return (3 if self.gated else 2) * self.width * self.mlp_width


def known(value: int | None, name: str) -> int:
    """Return the value of a dimension. If it is None, raise `LookupError` with the dimension's name."""
    if value is None:
        raise LookupError(name)
    return value


class Family(NamedTuple):
    """Facts about a Hugging Face `model_type` that may be missing in config.json."""

    gated: bool = True
    tied: bool = False
    required: tuple[str, ...] = ()
    """Fields of `Architecture` without a default, which config.json must contain."""


FAMILIES = {
    "bloom": Family(gated=False, tied=True),
    "gemma": Family(tied=True, required=("kv_heads", "head_dim")),
    "gemma2": Family(tied=True, required=("kv_heads", "head_dim")),
    "gpt2": Family(gated=False, tied=True),
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
"""Known families by `model_type`. Tests compare the FLOPs of each with the FLOPs counted while a model runs."""

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
    "positions": ("n_positions",),  # learned
}


def dimensions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an `Architecture` from the config.json of a Hugging Face model."""
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise ConfigError(f"model_type: got {kind!r}, wanted one of {', '.join(FAMILIES)}.")
    sizes = {name: _first(config, names) for name, names in _NAMES.items()}
    for name in ("layers", "hidden", "heads", "vocab", *family.required):
        if sizes[name] is None:
            raise ConfigError(f"{_NAMES[name][0]}: is missing in config.json, wanted a whole number.")
    outputs, tied = _outputs(config), config.get("tie_word_embeddings", family.tied)
    if not isinstance(tied, bool):
        raise ConfigError(f"tie_word_embeddings: got {tied!r}, wanted true or false.")
    fields_read = sizes | {"gated": family.gated, "tied": tied and outputs is None, "outputs": outputs}
    return {name: value for name, value in fields_read.items() if value is not None}


def _outputs(config: Mapping[str, Any]) -> int | None:
    """Return the width of the output head of the model's class. None means the size of the vocabulary."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if not names or name.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    if name.endswith(("ForSequenceClassification", "ForTokenClassification")):
        labels = config.get("id2label")
        return _first(config, ("num_labels",)) or (len(labels) if isinstance(labels, dict) else 2)
    if name.endswith("ForQuestionAnswering"):
        return 2  # the first and the last token of the answer
    if re.fullmatch(r"(?!.*DoubleHeads)\w+Model", name):
        return 0
    raise ConfigError(f"architectures: got {names!r}, whose output head is unknown.")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    values = [config[name] for name in names if config.get(name) is not None]
    if values and (not isinstance(values[0], int) or isinstance(values[0], bool)):
        raise ConfigError(f"{names[0]}: got {values[0]!r}, wanted a whole number.")
    return values[0] if values else None
