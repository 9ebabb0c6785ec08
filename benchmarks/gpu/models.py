"""Linear layers, a Llama and a transformer of torch's own layers; the first two with their FLOPs by hand.

A product of (n x k) and (k x m) is 2nkm, and its backward is as much again for each of its two operands that needs a
gradient. Nothing here asks torch or the package.
"""

import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gpu.bench import Bench, MissingError


class Case:
    """A model, its optimizer, one batch, and the FLOPs of a step."""

    def __init__(
        self, name: str, model: Any, batch: dict[str, torch.Tensor], model_flops: int = 0, again: int = 0
    ) -> None:
        self.name, self.model, self.batch, self.model_flops = name, model, batch, model_flops
        self.hardware_flops = model_flops + again
        kinds = {parameter.device.type for parameter in model.parameters()}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=kinds <= {"cuda", "cpu"} or None)

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Stack(nn.Module):
    """Square linear layers, one after the other."""

    def __init__(self, layers: int, wide: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(wide, wide, bias=False, dtype=dtype) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=self.layers(x).float().square().mean())


def stack(bench: Bench, layers: int, wide: int, rows: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    """The data need no gradient, so that the first layer has one product less."""
    with bench.device:
        model = Stack(layers, wide, dtype)
        batch = {"x": torch.randn(rows, wide, dtype=dtype)}
    return Case(f"{layers} linear layers, {rows} x {wide}", model, batch, 2 * rows * wide * wide * (3 * layers - 1))


def small(bench: Bench) -> Case:
    """A step in which the host takes long."""
    return stack(bench, 4, 64, 32, torch.float32)


MILLISECONDS = 5
"""Length of the step in which the device takes long."""


def large(bench: Bench) -> Case:
    """A step in which the device takes long: about 5 ms. An H100 takes 6 ms for 4,096 rows, other devices differ."""
    if bench.quick:
        return stack(bench, 2, 64, 64)
    wide, rows = 4096, 4096
    tried = stack(bench, 8, wide, rows)
    for number in range(30):
        if number == 10:
            bench.synchronize()
            began = time.perf_counter()
        tried.step(tried.batch)
    bench.synchronize()
    usual = (time.perf_counter() - began) / 20 * 1000
    return stack(bench, 8, wide, max(1, round(rows * MILLISECONDS / usual / 256)) * 256)


class Transformer(nn.Module):
    """Layers of torch's own, without dropout, so that no package is needed."""

    def __init__(self, layers: int, wide: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    wide,
                    heads,
                    4 * wide,
                    dropout=0.0,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                    dtype=dtype,
                )
                for _ in range(layers)
            ]
        )

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(loss=x.float().square().mean())


def transformer(bench: Bench) -> Case:
    """About 100M parameters and 8,192 tokens in full; a step takes an H100 some 15 ms."""
    layers, wide, heads, batch, length = bench.pick((8, 1024, 16, 8, 1024), (2, 32, 2, 2, 16))
    torch.manual_seed(0)
    with bench.device:
        model = Transformer(layers, wide, heads, torch.bfloat16)
        x = torch.randn(batch, length, wide, dtype=torch.bfloat16)
    return Case(f"transformer, {layers} layers, {batch} x {length} x {wide}", model, {"x": x})


WHOLE = {"layers": 16, "wide": 2048, "between": 5632, "heads": 16, "groups": 8, "words": 32000}
TINY = {"layers": 2, "wide": 64, "between": 128, "heads": 4, "groups": 2, "words": 256}


def llama(bench: Bench, batch: int = 4, length: int = 2048) -> Case:
    """About 0.9B parameters in full; its attention shares keys between heads."""
    if bench.simulated:
        raise MissingError("transformers' Llama needs operations that the simulated device lacks")
    try:
        from transformers import AutoModelForCausalLM, LlamaConfig
    except ImportError as error:
        raise MissingError("needs the package transformers") from error

    sizes = bench.pick(WHOLE, TINY)
    batch, length = bench.pick((batch, length), (2, 32))
    config = LlamaConfig(
        vocab_size=sizes["words"],
        hidden_size=sizes["wide"],
        intermediate_size=sizes["between"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["groups"],
        max_position_embeddings=length,
        use_cache=False,
    )
    torch.manual_seed(0)
    with bench.device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(torch.bfloat16).train()
        ids = torch.randint(0, sizes["words"], (batch, length))
    name = f"Llama, {sum(one.numel() for one in model.parameters()) / 1e9:.2f}B, {batch} x {length}"
    return Case(name, model, {"input_ids": ids, "labels": ids}, *by_hand(sizes, batch, length))


def by_hand(sizes: dict[str, int], batch: int, length: int) -> tuple[int, int]:
    """Model FLOPs of a step, and those that fused attention does again in its backward: the scores.

    Attention is counted in full, causal or not.
    """
    rows, wide, between = batch * length, sizes["wide"], sizes["between"]
    shared = wide * sizes["groups"] // sizes["heads"]
    linear = 2 * rows * (2 * wide * wide + 2 * wide * shared + 3 * wide * between)
    scores = 2 * batch * length * length * wide
    head = 2 * rows * wide * sizes["words"]
    return 3 * (sizes["layers"] * (linear + 2 * scores) + head), sizes["layers"] * scores
