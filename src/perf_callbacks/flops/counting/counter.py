"""Count the FLOPs of each operation that torch dispatches."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch._C import _pop_torch_dispatch_stack, _push_on_torch_dispatch_stack
from torch._ops import OpOverload
from torch.autograd import Variable
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils.hooks import RemovableHandle

from perf_callbacks.flops.counting.coverage import Weights
from perf_callbacks.flops.counting.module_shares import ModuleShares
from perf_callbacks.flops.counting.observed import Observed
from perf_callbacks.flops.counting.operands import are_batched, flops_per_real_flop, is_wrapped, number_format, tensors
from perf_callbacks.flops.counting.phases import in_backward, newest_node, phase, running_node
from perf_callbacks.flops.counting.repeats import Repeats
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.flops.work import Cell, Kind, Work
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass, of_handler
from perf_callbacks.kernel.process.compiler_stance import in_compiled_call


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Counts FLOPs by phase, dtype and kind of operation. Errors in the counter never reach the program.

    Compiled models must run eagerly during the count: see `perf_callbacks.flops.counting.count_window`.

    Args:
        filtered: Filter that selects the counted operations. None means that all operations are counted.
        follow: Function that is called after each operation of the training. The function's arguments are the
            operation, the operation's result, and the number of the running backward (0 outside of a backward).
        model: Model for which FLOPs are also counted per module. None means that no FLOPs are counted per module.

    >>> with FlopCounter() as counter:
    ...     product = torch.ones(2, 3) @ torch.ones(3, 5)
    ...     print(counter.work().by_phase)
    {'forward': 60}
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that compiled code stays compiled. Only eager runs are counted."""
        return True

    def __init__(
        self,
        filtered: TrainingFilter | None = None,
        follow: Callable[[Any, Any, int], object] | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.inert = False
        """True if the counter has stopped counting, although it may still be on the stack of modes."""
        self.lost = False
        """True if a part of the step was missed, so that all FLOPs of the step were dropped."""
        self.pushed = False
        """True if the counter may be on a thread's stack of modes."""
        self.operations = 0
        """Number of all dispatched operations, counted or not."""
        self.passes: list[Counter[Cell]] = [Counter()]
        """FLOPs of each pass. A pass consists of a forward and the next backward."""
        self.logical: Counter[Cell] = Counter()
        """FLOPs of operations on sharded tensors, as if the tensors were not sharded."""
        self.weights = Weights()
        self.observed = Observed()
        self.modules = ModuleShares(model)
        self.errors: Counter[str] = Counter()
        """Number of errors in the counter itself, for each operation and type of error."""
        self._repeats = Repeats()
        self._filter = filtered
        self._follower = follow
        self._apart: dict[int, tuple[Cell, int, str | None]] = {}
        """FLOPs and module path of each product that was not counted, by the number of the product's autograd node.

        If a backward runs the autograd node, the FLOPs of the product are added to the count.
        """
        self._aside: tuple[int, int] | None = None  # the thread that was left, and the size of its stack
        self._broken = False
        self._forwards: list[int] = []  # ids of begun modules: a counter that stays on a stack must keep no model
        self._begun: set[int] = set()  # backwards
        self._backwards = False
        hooks = modules._global_forward_pre_hooks, modules._global_forward_hooks  # noqa: SLF001 as below
        self._hooks = [RemovableHandle(one) for one in hooks]

    def __enter__(self) -> "FlopCounter":  # noqa: PYI034 Python 3.10 has no Self
        self.hook()
        self.enter_stack()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self.unhook()
        finally:
            self.leave_stack()

    def hook(self) -> None:
        """Add hooks that watch the calls of all modules. A second call changes nothing."""
        begins, ends = self._hooks
        # torch's own functions return the handle after the hook is in place; an interrupt may come in between
        modules._global_forward_pre_hooks[begins.id] = partial(self._see, begins=True)  # noqa: SLF001 there is no public name
        # a module that was sharded as a whole gets its weights only now
        modules._global_forward_hooks[ends.id] = partial(self._see, begins=False)  # noqa: SLF001 as above

    def unhook(self) -> None:
        """Remove the hooks on modules. Drop the count if the counter left the stack of modes and didn't return."""
        if self._aside is not None:
            self.lose()
        for hook in self._hooks:
            hook.remove()

    def enter_stack(self) -> None:
        """Push the counter onto this thread's stack of modes.

        torch's own `__enter__` is not used, because it sets flags for the whole process. An interrupt or a second
        thread could leave the flags of the process wrong.
        """
        self.pushed = True
        _push_on_torch_dispatch_stack(self)

    def leave_stack(self) -> None:
        """Pop the counter off this thread's stack of modes, if the counter is on top."""
        if dispatch_modes()[-1:] == [self]:
            _pop_torch_dispatch_stack(None)
        self.pushed = self in dispatch_modes()

    def step_aside(self) -> None:
        """Pop the counter off this thread's stack of modes until the thread calls a module."""
        self.leave_stack()
        self._aside = get_ident(), len(dispatch_modes())

    def _come_back(self) -> None:
        """Push the counter onto the stack again when a module is called. If this is impossible, drop the count."""
        if self._aside is None or self._aside[0] != get_ident() or in_backward():
            return
        depth, self._aside = self._aside[1], None
        if len(dispatch_modes()) == depth and not (torch.is_inference_mode_enabled() or in_compiled_call()):
            self.enter_stack()
        else:
            self.lose()

    def lose(self) -> None:
        """Drop the count and stop counting, because an unknown part of the step was missed."""
        self._aside = None
        self.lost = self.inert = True
        self.forget()

    def forget(self) -> None:
        """Drop all FLOPs that were counted."""
        self.passes = [Counter()]
        self.modules.forget()

    @property
    def interrupted(self) -> bool:
        """True if an exception ended a module's call, a backward or an operation that began during the count."""
        return self._broken or bool(self._forwards) or bool(self._begun)

    def work(self) -> Work:
        """Return all FLOPs that were counted."""
        return Work.sum(Work(cells) for cells in self.passes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        if self.inert or not self._is_training_work():
            return self._pass_on(func, types, args, kwargs)
        if types and is_wrapped(types):  # `NotImplemented` splits the operation into parts that come back here
            self._count_whole(func, args, kwargs)
            return NotImplemented
        if (
            torch.is_inference_mode_enabled()
            and isinstance(func, OpOverload)
            and self.observed.sort(func).formula is None
        ):
            _push_on_torch_dispatch_stack(self)  # in inference mode, no other code has split the operation
            try:
                out = func.decompose(*args, **kwargs)
            finally:
                if dispatch_modes()[-1:] == [self]:
                    _pop_torch_dispatch_stack(None)  # `pushed` stays true: torch pushes the mode again afterwards
            if out is not NotImplemented:
                return out
        backward = in_backward()
        if backward:
            self._enter_backward(func, backward)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self._broken |= not (self._forwards or backward)  # `_see` and `_end` see if these complete after all
            raise
        try:
            self._count(func, args, kwargs, out)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)
        self._follow(func, args, out, backward)
        return out

    def _pass_on(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation without counting it. The operation counts later if a backward runs its autograd node."""
        if func is _READS_VALUE and not self.inert:
            with guard(partial(self._err, "read")):
                if self._filter is not None and self._filter.is_between_stages():
                    self.observed.value_read()
        out = func(*args, **kwargs)
        if torch.is_grad_enabled() and not (self.inert or in_backward() or is_wrapped(types)):
            try:
                operands = [*tensors(args)]
                formula = self.observed.sort(func).formula if any(one.requires_grad for one in operands) else None
                if formula is not None and (factor := flops_per_real_flop(operands)):
                    cell = Cell("forward", number_format(operands, formula.kind), formula.kind)
                    flops = factor * formula.flops(*args, **kwargs, out_val=out)
                    self._apart[newest_node()] = cell, flops, self.modules.passed()
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                self._err(func, error)
        return out

    def _enter_backward(self, func: Any, backward: int) -> None:
        """Record the backward in which an operation runs.

        If `_apart` holds a product of the running autograd node, count the product.
        """
        if backward not in self._begun:
            self._await_end(backward)
        if self._apart:
            try:
                number = running_node()  # None in autograd's final callbacks, such as those of DDP
                if number is not None and number in self._apart:
                    cell, flops, path = self._apart.pop(number)
                    self.passes[-1][cell] += flops
                    self.modules.add(cell, flops, path)
            except Exception as error:  # noqa: BLE001 as above
                self._err(func, error)

    def _follow(self, func: Any, args: Any, out: Any, backward: int) -> None:
        """Report an operation to the trackers of gradients and memory. The trackers' errors don't change the count."""
        try:
            self._repeats.follow(func, args, out)
            self.modules.follow(func, out, backward)
            if self._follower is not None:
                self._follower(func, out, backward)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)

    def _is_training_work(self) -> bool:
        try:
            return self._filter is None or self._filter.is_training_work()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err("filter", error)
            return False

    def _err(self, func: Any, error: Exception) -> None:
        """Record an error of the counter. After the error of a signal handler, end the count and raise the error."""
        self._broken |= of_handler(error) is not None
        let_pass(error)
        self.errors[f"{func}: {type(error).__name__}"] += 1

    def _see(self, module: torch.nn.Module, *_: object, begins: bool) -> None:
        try:
            if begins:
                self._come_back()
            training = self._is_training_work()
            if begins and training and not in_backward():  # recomputation stops in the middle of modules
                self._forwards.append(id(module))
            elif id(module) in self._forwards and not in_backward():
                while self._forwards.pop() != id(module):  # an inner module raised
                    continue
            if training and not self.inert:
                self.weights.see(module)
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(type(module).__name__, error)

    def _await_end(self, backward: int) -> None:
        """Ask autograd to call back at the end of a backward. autograd calls back only if the backward completes."""
        self._begun.add(backward)
        try:
            Variable._execution_engine.queue_callback(lambda: self._end(backward))  # noqa: SLF001 as DDP does
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)
            self._begun.discard(backward)
            self._err("backward", error)

    def _end(self, backward: int) -> None:
        """Record the end of a backward, and of all backwards within it that raised an exception."""
        self._begun = {begun for begun in self._begun if begun < backward}

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Count the FLOPs of an operation. If the FLOPs are unknown, the total becomes a lower bound."""
        operands: list[torch.Tensor] = []
        factor = flops = again = 0
        try:
            formula = self.observed.sort(func).formula
            if formula is not None:
                operands = [*tensors(args)]
                factor = flops_per_real_flop(operands)
                flops = factor and factor * formula.flops(*args, **kwargs, out_val=out)
                again = int(flops * formula.again(*args, **kwargs)) if formula.again is not None else 0
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)
            self.observed.failed(func)
            return
        if formula is None:
            self.observed.uncounted(func, args, out, self.weights, len(self.passes))
            return
        try:
            cell, cells = self._place(operands, formula.kind)
        except Exception as error:  # noqa: BLE001 as above; the product counts all the same
            self._err(func, error)
            cell, cells = Cell("backward" if in_backward() else "forward", "float32", formula.kind), self.passes[-1]
        if not factor:
            return
        split = cell._replace(phase="attention_recompute" if cell.phase == "backward" else cell.phase)
        for part, amount in ((cell, flops - again), (split, again)):
            if amount:
                cells[part] += amount
                self.modules.add(part, amount)
        self.observed.product(func, (args, kwargs), operands, cell.dtype, flops)

    def _place(self, operands: list[torch.Tensor], kind: Kind) -> tuple[Cell, Counter[Cell]]:
        """Return the phase, dtype and kind of a product, and the pass to which the product belongs."""
        weighty = self.weights.multiplied(operands)
        if not weighty and kind == "matmul" and are_batched(operands):
            kind = "attention"
        cell = Cell(phase(operands), number_format(operands, kind), kind)
        if cell.phase == "forward":
            self._repeats.multiplied(operands)
        elif cell.phase == "backward" and self._repeats.repeated(operands):
            cell = cell._replace(phase="recompute")
        return cell, self._turn(cell)

    def _turn(self, cell: Cell) -> Counter[Cell]:
        """Return the pass to which an operation belongs. A forward after a backward begins a new pass."""
        if cell.phase == "forward" and self._backwards:
            self.passes.append(Counter())
        if cell.phase in {"forward", "backward"}:
            self._backwards = cell.phase == "backward"
        return self.passes[-1]

    def _count_whole(self, func: Any, args: Any, kwargs: Any) -> None:
        """Count the FLOPs of an operation on sharded tensors, as if the tensors were not sharded."""
        try:
            formula = self.observed.sort(func).formula
            operands = [*tensors(args)]
            if formula is not None and any(hasattr(operand, "device_mesh") for operand in operands):
                flops = flops_per_real_flop(operands) * formula.flops(*args, **kwargs, out_val=None)
                self.logical[Cell(phase(operands), number_format(operands, formula.kind), formula.kind)] += flops
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)


_READS_VALUE = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 the operation of `.item()`
