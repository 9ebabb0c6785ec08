"""A simulated accelerator: loaders pin their batches, and each copy is recorded."""

import dataclasses

import torch
from torch.utils.data import _utils, dataloader

from perf_callbacks.kernel.fit import environment


class Pinned(torch.Tensor):
    """In memory that seems to be pinned. How it is copied is kept in `copies`."""

    copies: list = []  # noqa: RUF012 there is one accelerator

    def is_pinned(self, *_):
        return True

    def to(self, *args, non_blocking=False, **kwargs):
        self.copies.append(non_blocking)
        return self.as_subclass(torch.Tensor).to(*args, **kwargs)


def _pin(data, _device=None):
    if isinstance(data, torch.Tensor):
        return data.as_subclass(Pinned)
    if isinstance(data, dict):
        return {key: _pin(value) for key, value in data.items()}
    return [_pin(one) for one in data] if isinstance(data, list) else data


def install(monkeypatch, **facts):
    """From now on there is an accelerator, until the end of the test; how each tensor was copied."""
    begin, read = dataloader._BaseDataLoaderIter.__init__, environment.read

    def beginning(self, loader):
        begin(self, loader)
        self._pin_memory, self._pin_memory_device = loader.pin_memory, "cuda"

    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__init__", beginning)
    monkeypatch.setattr(_utils.pin_memory, "pin_memory", _pin)
    facts = {"accelerator": "cuda", "pinned_copies": True, **facts}
    monkeypatch.setattr(environment, "read", lambda **found: dataclasses.replace(read(**found), **facts))
    monkeypatch.setattr(Pinned, "copies", [])
    return Pinned.copies
