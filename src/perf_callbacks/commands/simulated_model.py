"""Simulation of a transformers model on fake tensors, built from a config.json, for `perf-callbacks memory`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.memory.simulated_step import Simulation


def simulation(config: Mapping[str, Any], optimizer: str, dtype: str, *, accelerator: bool) -> Simulation:
    """Python files beside the config are not run. Raise `ConfigError` if transformers lacks such a model."""
    try:
        import transformers  # noqa: PLC0415 slow, and optional
    except ImportError:
        raise ConfigError("transformers: is not installed, wanted for the model of a config.json.") from None
    kind = str(config.get("model_type"))
    values = {name: value for name, value in config.items() if name not in {"model_type", "auto_map"}}
    library: Any = transformers  # untyped in parts
    library.utils.logging.set_verbosity_error()
    try:
        model_config = library.AutoConfig.for_model(kind, **values)
        has_model = type(model_config) in library.AutoModelForCausalLM._model_mapping  # noqa: SLF001 there is no public name
    except ValueError as error:
        raise ConfigError(f"model_type: got {kind!r}: {str(error).partition(chr(10))[0]}") from None
    if not has_model:
        raise ConfigError(f"model_type: got {kind!r}, wanted the model_type of a causal language model.")

    name = "torch_dtype" if library.__version__.startswith("4.") else "dtype"

    def make(dtype: torch.dtype) -> nn.Module:
        model: nn.Module = library.AutoModelForCausalLM.from_config(model_config, **{name: dtype})
        return model

    with unpadded():
        return Simulation(make, optimizer, dtype, accelerator=accelerator)


@contextmanager
def unpadded() -> Iterator[None]:
    """Treat fake tensors as batches without padding: transformers 5 would make an attention mask for each."""
    from transformers.utils import import_utils  # noqa: PLC0415 as above

    name = "is_fake_tensor"
    original = getattr(import_utils, name, None)
    if original is not None:
        setattr(import_utils, name, lambda _: False)
    try:
        yield
    finally:
        if original is not None:
            setattr(import_utils, name, original)
