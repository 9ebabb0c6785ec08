"""Count the FLOPs of each operation that torch dispatches."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch._C import _pop_torch_dispatch_stack, _push_on_torch_dispatch_stack
from torch._ops import OpOverload
from torch.autograd import Variable
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from torch.utils.hooks import RemovableHandle

from perf_callbacks.flops.counting.count_limit import CountLimit
from perf_callbacks.flops.counting.coverage import Weights
from perf_callbacks.flops.counting.module_shares import ModuleShares
from perf_callbacks.flops.counting.observed import OperationFacts, StepObservations
from perf_callbacks.flops.counting.operands import are_batched, flops_per_real_flop, is_wrapped, number_format, tensors
from perf_callbacks.flops.counting.phases import in_backward, newest_node, phase, running_node
from perf_callbacks.flops.counting.repeats import Repeats
from perf_callbacks.flops.counting.stacked_mode import StackedMode
from perf_callbacks.flops.training_filter import TrainingFilter
from perf_callbacks.flops.work import Kind, Work, WorkKey
from perf_callbacks.kernel.failures import guard
from perf_callbacks.kernel.foreign_errors import let_pass, of_handler
from perf_callbacks.kernel.process import compiler


class FlopCounter(StackedMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Counts FLOPs by phase, dtype and kind of operation. Its errors never reach the program.

    Compiled code runs as usual below the counter, which sees only what the compiler left to torch, such as most matrix
    products. `follow` is called after each operation of the training, with the operation, its result, and the number of
    the running backward (0 outside); `spent` is True once the count has cost enough.

    >>> with FlopCounter() as counter:
    ...     product = torch.ones(2, 3) @ torch.ones(3, 5)
    ...     print(counter.work().by_phase)
    {'forward': 60}
    """

    def __init__(
        self,
        filtered: TrainingFilter | None = None,
        follow: Callable[[Any, Any, int], object] | None = None,
        model: torch.nn.Module | None = None,
        spent: Callable[[int], bool] | None = None,
    ) -> None:
        super().__init__()
        self.lost = False  # True if a part of the step was missed, so that all its FLOPs were dropped
        self.operations = 0  # dispatched so far, counted or not
        self.passes: list[Counter[WorkKey]] = [Counter()]  # of each forward with the next backward
        self.logical: Counter[WorkKey] = (
            Counter()
        )  # FLOPs of operations on sharded tensors, as if they were not sharded
        self.weights = Weights()
        self.observed = StepObservations()
        self.modules = ModuleShares(model)
        self.errors: Counter[str] = Counter()  # of the counter itself, by operation and type of error
        self.limit = None if filtered is None or spent is None else CountLimit(filtered.stage_tracker, spent)
        self._model = None if model is None else ref(model)
        self._repeats = Repeats()
        self._filter = filtered
        self._follower = follow
        self._apart: dict[int, tuple[WorkKey, int, str | None]] = {}
        """FLOPs and module path of uncounted products by autograd node; they count if a backward runs the node."""
        self._broken = False
        self._hooked = True
        self._forwards: list[int] = []  # ids of begun modules: a counter that stays on a stack must keep no model
        self._begun: set[int] = set()  # backwards
        self._backwards = False
        hooks = modules._global_forward_pre_hooks, modules._global_forward_hooks  # noqa: SLF001 as below
        self._hooks = [RemovableHandle(registry) for registry in hooks]

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
        """Watch the calls of all modules. A second call changes nothing.

        A program that compiles gets no hooks, because the compiler would compile them too: all weights are then
        expected in products.
        """
        if compiler.compiles():
            self._hooked = False
            self._expect_weights()
            return
        compiler.on_compilation(self._compiles)
        begins, ends = self._hooks
        # torch's own functions return the handle after the hook is in place; an interrupt may come in between
        modules._global_forward_pre_hooks[begins.id] = partial(self._see, begins=True)  # noqa: SLF001 there is no public name
        # a module that was sharded as a whole gets its weights only now
        modules._global_forward_hooks[ends.id] = partial(self._see, begins=False)  # noqa: SLF001 as above

    def unhook(self) -> None:
        """Remove the hooks. Drop the count if the counter missed a part of forward or backward."""
        self.end_profile()
        if self.aside is not None and (self.limit is None or not self.limit.complete):
            self.lose()
        compiler.off_compilation(self._compiles)
        self._remove_hooks()
        if not self._hooked:
            with guard(partial(self._err, "weights")):
                self._expect_weights()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _compiles(self, *_: object) -> None:
        """Remove the hooks before the compiler traces the program's first function."""
        with guard(partial(self._err, "compilation")):
            self._hooked = False
            self._remove_hooks()
            self._forwards.clear()  # no hook will see their ends
            self._expect_weights()

    def _expect_weights(self) -> None:
        model = None if self._model is None else self._model()
        for module in () if model is None else model.modules():
            self.weights.see(module, runs=id(module) in self.modules.ran)

    def _come_back(self) -> None:
        """Return to the stack when a module is called, or else drop the count."""
        if self.aside is None or self.aside[0] != get_ident() or in_backward():
            return
        if self.limit is not None and self.limit.ended is not None:
            self.aside = None
        elif self.can_return():
            if self.limit is not None:
                self.limit.begin_again()
            self.enter_stack()
        else:
            self.lose()

    def lose(self) -> None:
        self.aside = None
        self.lost = self.inert = True
        self.forget()

    def forget(self) -> None:
        self.passes = [Counter()]
        self.modules.forget()

    @property
    def interrupted(self) -> bool:
        """True if an exception ended a module's call, a backward or an operation that began during the count."""
        return self._broken or bool(self._forwards) or bool(self._begun)

    def work(self) -> Work:
        return Work.sum(Work(cells) for cells in self.passes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations += 1
        if self.inert:
            return func(*args, **kwargs)
        try:
            sort = self.observed.sort(func)
            counts = not (sort.view and not types) and not self._is_too_long(sort) and self._is_training_work()
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)
            return self._pass_on(func, types, args, kwargs)
        if not counts:
            return func(*args, **kwargs) if sort.view else self._pass_on(func, types, args, kwargs)
        if types and is_wrapped(types):  # `NotImplemented` splits the operation into parts that come back here
            self._count_whole(func, args, kwargs)
            return NotImplemented
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload) and sort.formula is None:
            out = self._decompose(func, args, kwargs)
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

    def _decompose(self, func: "OpOverload[..., Any]", args: Any, kwargs: Any) -> Any:
        """Run the parts of an operation, which come back here: in inference mode, nothing else has split it."""
        _push_on_torch_dispatch_stack(self)
        try:
            return func.decompose(*args, **kwargs)
        finally:
            if dispatch_modes()[-1:] == [self]:
                _pop_torch_dispatch_stack(None)  # `pushed` stays true: torch pushes the mode again afterwards

    def _is_too_long(self, sort: OperationFacts) -> bool:
        limit = self.limit
        if limit is None or not limit.reached(sort, self.operations):
            return False
        self.inert = limit.ended is not None
        self.step_aside_soon()
        return True

    def _pass_on(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation without counting it; it counts later if a backward runs its autograd node."""
        if func is _READS_VALUE and not self.inert:
            with guard(partial(self._err, "read")):
                if self._filter is not None and self._filter.is_between_stages():
                    self.observed.value_read()
        out = func(*args, **kwargs)
        if torch.is_grad_enabled() and not (self.inert or in_backward() or is_wrapped(types)):
            try:
                operands = [*tensors(args)]
                formula = (
                    self.observed.sort(func).formula if any(operand.requires_grad for operand in operands) else None
                )
                if formula is not None and (factor := flops_per_real_flop(operands)):
                    cell = WorkKey("forward", number_format(operands, formula.kind), formula.kind)
                    flops = factor * formula.flops(*args, **kwargs, out_val=out)
                    self._apart[newest_node()] = cell, flops, self.modules.passed()
            except Exception as error:  # noqa: BLE001 an observer never ends the run
                self._err(func, error)
        return out

    def _enter_backward(self, func: Any, backward: int) -> None:
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
        """The trackers' errors don't change the count."""
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
        """Record an error of the counter. One of a signal handler ends the count and is raised."""
        self._broken |= of_handler(error) is not None
        let_pass(error)
        self.errors[f"{func}: {type(error).__name__}"] += 1

    def _see(self, module: torch.nn.Module, *_: object, begins: bool) -> None:
        if is_dynamo_compiling():  # the compiler takes this for True: a module may be compiled during the count
            return
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
        """Ask autograd to call back at the end of a backward, which it does only if the backward completes."""
        self._begun.add(backward)
        try:
            Variable._execution_engine.queue_callback(lambda: self._end(backward))  # noqa: SLF001 as DDP does
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            let_pass(error)
            self._begun.discard(backward)
            self._err("backward", error)

    def _end(self, backward: int) -> None:
        self._begun = {begun for begun in self._begun if begun < backward}

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """If the FLOPs of an operation are unknown, the total becomes a lower bound."""
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
            cell, cells = WorkKey("backward" if in_backward() else "forward", "float32", formula.kind), self.passes[-1]
        if not factor:
            return
        split = cell._replace(phase="attention_recompute" if cell.phase == "backward" else cell.phase)
        for part, amount in ((cell, flops - again), (split, again)):
            if amount:
                cells[part] += amount
                self.modules.add(part, amount)
        self.observed.product(func, (args, kwargs), operands, cell.dtype, flops)

    def _place(self, operands: list[torch.Tensor], kind: Kind) -> tuple[WorkKey, Counter[WorkKey]]:
        weighty = self.weights.multiplied(operands)
        if not weighty and kind == "matmul" and are_batched(operands):
            kind = "attention"
        cell = WorkKey(phase(operands), number_format(operands, kind), kind)
        if cell.phase == "forward":
            self._repeats.multiplied(operands)
        elif cell.phase == "backward" and self._repeats.repeated(operands):
            cell = cell._replace(phase="recompute")
        return cell, self._turn(cell)

    def _turn(self, cell: WorkKey) -> Counter[WorkKey]:
        """A forward after a backward begins a new pass."""
        if cell.phase == "forward" and self._backwards:
            self.passes.append(Counter())
        if cell.phase in {"forward", "backward"}:
            self._backwards = cell.phase == "backward"
        return self.passes[-1]

    def _count_whole(self, func: Any, args: Any, kwargs: Any) -> None:
        try:
            formula = self.observed.sort(func).formula
            operands = [*tensors(args)]
            if formula is not None and any(hasattr(operand, "device_mesh") for operand in operands):
                flops = flops_per_real_flop(operands) * formula.flops(*args, **kwargs, out_val=None)
                self.logical[WorkKey(phase(operands), number_format(operands, formula.kind), formula.kind)] += flops
        except Exception as error:  # noqa: BLE001 an observer never ends the run
            self._err(func, error)


_READS_VALUE = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 the operation of `.item()`
