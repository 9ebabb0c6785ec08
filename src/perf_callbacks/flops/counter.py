"""Counts the FLOPs of what runs while it is entered, operation by operation, as torch dispatches them."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import Variable
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode

from perf_callbacks.core.work import Cell, Kind, Work
from perf_callbacks.flops import formulas
from perf_callbacks.flops.coverage import Weights
from perf_callbacks.flops.formulas import Formula
from perf_callbacks.flops.observed import Observed
from perf_callbacks.flops.phases import in_backward, phase


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Counts FLOPs by phase, number format and kind. It changes nothing of what it sees, and nothing in it can raise.

    Models that are compiled must run eagerly meanwhile: see `perf_callbacks.flops.window`.

    >>> with FlopCounter() as counter:
    ...     product = torch.ones(2, 3) @ torch.ones(3, 5)
    ...     print(counter.work().by_phase)
    {'forward': 60}
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What is compiled stays so: where nobody made it run eagerly, less is counted, and the model is whole."""
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.inert = False
        """Set where it can't be taken off the stack of modes: it counts no more."""
        self.books: Callable[[], bool] = _always
        """Asked before each operation: False while something runs that is not training work. Such operations and
        modules are passed on and leave no trace here."""
        self.passes: list[Counter[Cell]] = [Counter()]
        """What was counted, apart for each forward and the backward that follows."""
        self.logical: Counter[Cell] = Counter()
        """As though what is sharded were whole, where there are sharded tensors."""
        self.weights = Weights()
        self.observed = Observed()
        self.errors: Counter[str] = Counter()
        """What went wrong here, by operation."""
        self._broken = False
        self._forwards: list[torch.nn.Module] = []  # that have begun
        self._begun: set[int] = set()  # backwards
        self._backwards = False
        self._formulas: dict[int, tuple[Any, Formula | None]] = {}  # with the operation, whose id it keeps
        self._hooks: list[Any] = []

    def __enter__(self) -> "FlopCounter":  # noqa: PYI034 Python 3.10 has no Self
        if not self._hooks:
            self._hooks = [
                modules.register_module_forward_pre_hook(lambda module, _: self._see(module, begins=True)),
                # a module that was sharded as a whole has its weights only now
                modules.register_module_forward_hook(lambda module, *_: self._see(module, begins=False)),
            ]
        super().__enter__()  # type: ignore[no-untyped-call] # as above
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.unhook()
        finally:
            super().__exit__(*error)  # type: ignore[no-untyped-call] # as above

    def unhook(self) -> None:
        """Look at no more modules."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    @property
    def interrupted(self) -> bool:
        """Whether something that was begun while it was counted raised, and never came to its end."""
        return self._broken or bool(self._forwards) or bool(self._begun)

    def work(self) -> Work:
        """All that was counted."""
        return Work.sum(Work(cells) for cells in self.passes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inert or not self._books():
            return func(*args, **kwargs)
        if types and _wrapped(types):  # it takes itself apart, into what we get then
            self._count_whole(func, args, kwargs)
            return NotImplemented
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload) and self._formula(func) is None:
            with self:  # nothing has taken it apart before
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        backward = in_backward()
        if backward and backward not in self._begun:
            self._await_end(backward)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._broken |= not (self._forwards or backward)  # these may survive it, and tell when they end
            raise
        try:
            self._count(func, args, kwargs, out)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)
        return out

    def _books(self) -> bool:
        try:
            return self.books()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err("books", error)
            return False

    def _err(self, func: Any, error: Exception) -> None:
        self.errors[f"{func}: {type(error).__name__}"] += 1

    def _see(self, module: torch.nn.Module, *, begins: bool) -> None:
        try:
            books = self._books()
            if begins and books and not in_backward():  # recomputation stops in the midst of modules
                self._forwards.append(module)
            elif module in self._forwards and not in_backward():
                while self._forwards.pop() is not module:  # it has survived what raised within it
                    continue
            if books and not self.inert:
                self.weights.see(module)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(type(module).__name__, error)

    def _await_end(self, backward: int) -> None:
        """Autograd calls back at the end of a backward, and only if it comes to its end."""
        self._begun.add(backward)
        try:
            Variable._execution_engine.queue_callback(lambda: self._end(backward))  # noqa: SLF001 as DDP does
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._begun.discard(backward)
            self._err("backward", error)

    def _end(self, backward: int) -> None:
        """It has survived what raised in backwards that began within it."""
        self._begun = {begun for begun in self._begun if begun < backward}

    def _formula(self, func: Any) -> Formula | None:
        known = self._formulas.get(id(func))
        if known is None:
            known = self._formulas[id(func)] = func, formulas.formula(func)
        return known[1]

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        formula = self._formula(func)
        if formula is None:
            self.observed.uncounted(func, args, out, self.weights)
            return
        flops = formula.flops(*args, **kwargs, out_val=out)
        operands = [*_tensors(args)]
        mixed = not self.weights.multiplied(operands)
        kind: Kind = "attention" if mixed and formula.kind == "matmul" and _batched(operands) else formula.kind
        cell = Cell(phase(operands), _dtype(operands, formula.kind), kind)
        cells = self._turn(cell)
        again = int(flops * formula.again(*args, **kwargs)) if formula.again is not None else 0
        cells[cell] += flops - again
        if again:
            cells[cell._replace(phase="attention_recompute" if cell.phase == "backward" else cell.phase)] += again
        self.observed.product(func, (args, kwargs), operands, cell.dtype, flops)

    def _turn(self, cell: Cell) -> Counter[Cell]:
        """Where to count: a forward after a backward begins another pass."""
        if cell.phase == "forward" and self._backwards:
            self.passes.append(Counter())
        if cell.phase in {"forward", "backward"}:
            self._backwards = cell.phase == "backward"
        return self.passes[-1]

    def _count_whole(self, func: Any, args: Any, kwargs: Any) -> None:
        """An operation on sharded tensors: what it amounts to over all who hold a part."""
        try:
            formula = self._formula(func)
            operands = [*_tensors(args)]
            if formula is not None and any(hasattr(operand, "device_mesh") for operand in operands):
                self.logical[Cell(phase(operands), _dtype(operands, formula.kind), formula.kind)] += formula.flops(
                    *args, **kwargs, out_val=None
                )
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)


def _always() -> bool:
    return True


_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


def _wrapped(types: Any) -> bool:
    return any(kind not in _PLAIN and hasattr(kind, "__tensor_flatten__") for kind in types)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _batched(operands: list[torch.Tensor]) -> bool:
    return sum(operand.dim() == 3 for operand in operands) > 1  # noqa: PLR2004 [batch, rows, columns]


def _dtype(operands: list[torch.Tensor], kind: Kind) -> str:
    operand = next((operand for operand in operands if operand.is_floating_point()), operands[0])
    if operand.dtype is torch.float32 and operand.device.type == "cuda" and _tf32(kind):
        return "tfloat32"
    return str(operand.dtype).removeprefix("torch.")


def _tf32(kind: Kind) -> bool:
    """Whether float32 is multiplied in tfloat32, as the knobs of torch 2.9 stand, or the older ones."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    older: Any = cudnn if kind == "convolution" else matmul
    knobs = getattr(cudnn, "conv", None) if kind == "convolution" else matmul
    precision = getattr(knobs, "fp32_precision", None)
    return bool(older.allow_tf32) if precision is None else precision == "tf32"
