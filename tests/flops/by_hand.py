"""The arithmetic of a training step, written down by hand: products of matrices, and who gets a gradient.

Nothing here asks torch anything. A product of (n x k) and (k x m) costs 2nkm; its backward costs as much again for each
operand that needs a gradient. A fused attention kernel gives all three gradients whoever asked, and computes the scores
a second time. What is not a product of matrices counts for nothing.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Who is trained: everything, all but what is frozen, or adapters of some rank beside frozen weights."""

    name: str
    frozen: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()
    rank: int = 0

    def trains(self, name):
        return not self.rank and not any(part in name for part in self.frozen)

    def adapts(self, name):
        return self.rank > 0 and name.rpartition(".")[2] in self.adapted


FULL = Training(name="full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One product of matrices in the forward pass."""

    flops: int
    gradients: int
    """How many of its operands get one."""
    kept: bool
    """Whether checkpointing that keeps the products with weights keeps it."""
    again: int = 0
    """What its backward computes a second time."""


@dataclass(kw_only=True)
class Hand:
    """Writes a model down, product by product, in the order of its forward pass.

    `x` is everywhere whether the input needs a gradient; what comes back is whether the output does.
    """

    training: Training = FULL
    fused: bool = False
    inputs_need: bool = False
    checkpointing: str = "none"
    products: list[Product] = field(default_factory=list)
    replayed: int = 0
    _last: int = 0

    def product(self, a, b, *sizes, kept=False, again=0, gradients=None):
        flops = 2
        for size in sizes:
            flops *= size
        gradients = int(a) + int(b) if gradients is None else gradients
        again = flops * again if gradients else 0
        self.products.append(Product(flops=flops, gradients=gradients, kept=kept, again=again))
        return a or b

    def linear(self, name, x, rows, wide, out, *, kept=True):
        """A linear layer, with its adapter where it has one."""
        needs = self.product(x, self.training.trains(name), rows, wide, out, kept=kept)
        if self.training.adapts(name):
            self.product(x, True, rows, wide, self.training.rank, kept=True)
            needs = self.product(True, True, rows, self.training.rank, out, kept=True)
        return needs

    def attention(self, query, key, value, sizes, *, fused=None):
        """Scores and their weighted sum; `sizes`: batch times heads, queries, keys, width of a head."""
        needs = query or key or value
        if self.fused if fused is None else fused:
            self.product(query, key, *sizes, gradients=2 * needs, again=1)
            self.product(query or key, value, *sizes, gradients=2 * needs)
        else:
            self.product(query, key, *sizes)
            self.product(query or key, value, *sizes)
        return needs

    def convolution(self, name, x, positions, out, per_output):
        """Any convolution: `positions` of the output (of the input where transposed), each `out` times `per_output`."""
        return self.product(x, self.training.trains(name), positions, out, per_output)

    def embedding(self, name):
        """A table: no product; its rows need a gradient where it is trained, or where checkpointing made them."""
        return self.training.trains(name) or self.inputs_need

    @contextmanager
    def block(self, *, tail=0):
        """What one checkpoint stands around; `tail`: products after the last tensor that its backward needs."""
        self._last = start = len(self.products)
        yield
        self.replayed += self._replay(self.products[start:], tail)

    @contextmanager
    def outer(self):
        """What an outer checkpoint stands around where they nest: everything in it once more.

        Where it stops early, that is all but the last block: what goes into that is the last thing to be known again.
        """
        start = len(self.products)
        yield
        if "nested" in self.checkpointing:
            end = self._last if self.checkpointing == "nested early" else len(self.products)
            self.replayed += sum(product.flops for product in self.products[start:end])

    def _replay(self, products, tail):
        if not any(product.gradients for product in products):
            return 0
        replayed = {
            "none": [],
            "reentrant": products,
            "whole": products,
            "early": products[: len(products) - tail],
            "nested": products,
            "nested early": products[: len(products) - tail],
            "nested whole": products,
            "selective": [product for product in products if not product.kept],
        }[self.checkpointing]
        return sum(product.flops for product in replayed)

    @property
    def by_phase(self):
        phases = {
            "forward": sum(product.flops for product in self.products),
            "backward": sum(product.flops * product.gradients for product in self.products),
            "recompute": self.replayed,
            "attention_recompute": sum(product.again for product in self.products),
        }
        return {phase: flops for phase, flops in phases.items() if flops}

    @property
    def model_flops(self):
        return self.by_phase["forward"] + self.by_phase.get("backward", 0)
