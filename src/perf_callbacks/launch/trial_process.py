"""Part of `perf-callbacks try` in the tried program: applies the changes of a trial, and measures a plain loop.

The interpreter imports this file before the program begins, so it doesn't import torch.
"""

import gc
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.trials import changes, process
from perf_callbacks.trials.plan import FAILED
from perf_callbacks.trials.process import TrialProcess

if TYPE_CHECKING:  # the program imports torch, not we
    from perf_callbacks.kernel.fit.training_objects import TrainingObjects

Action = Callable[[ModuleType], None]


def join(actions: dict[str, Action]) -> None:
    trial = process.current_trial()
    if trial is None:
        return
    with suppress(OSError):  # if memory runs out, the kernel stops the trial, and no other program
        Path("/proc/self/oom_score_adj").write_text("1000")
    own = changes.actions(trial)
    own["torch"] = _both(own["torch"], PlainLoop(trial).watch)
    for name, act in own.items():
        actions[name] = _checked(trial, act if name not in actions else _both(act, actions[name]))


def _both(first: Action, second: Action) -> Action:
    def act(module: ModuleType) -> None:
        first(module)
        second(module)

    return act


def _checked(trial: TrialProcess, act: Action) -> Action:
    """An error ends the trial: without its changes, it would measure the wrong thing."""

    def checked(module: ModuleType) -> None:
        try:
            act(module)
        except Exception as error:  # noqa: BLE001 the trial reports the error
            let_pass(error)
            trial.leave(FAILED, f"the changes can't be made: {describe(error)}")

    return checked


class PlainLoop:
    """Measures the loop of a program without a trainer, from its first optimizer step on.

    The model is the largest module that has a parameter of the optimizer and that the program itself called. A compiled
    module may hide its calls. If no such module was called, those count that are part of no other such module.
    """

    def __init__(self, trial: TrialProcess) -> None:
        self._trial = trial
        self._depth = 0
        self._called: list[Any] = []
        self._loader: Callable[[], Any] = type(None)
        self._handles: list[Any] = []
        self._measurement: Any = None
        self._loading = False

    def watch(self, torch: ModuleType) -> None:
        import torch.optim.optimizer as optimizers  # noqa: PLC0415 torch has just been imported
        from torch.nn.modules import module as modules  # noqa: PLC0415 as above
        from torch.utils.data import dataloader  # noqa: PLC0415 as above

        self._handles = [
            modules.register_module_forward_pre_hook(self._enters),
            modules.register_module_forward_hook(self._leaves, always_call=True),
            optimizers.register_optimizer_step_post_hook(self._first_step),
        ]
        fetch = dataloader._BaseDataLoaderIter.__next__  # noqa: SLF001 nothing public lies between loop and loader

        @wraps(fetch)
        def fetching(iterator: Any) -> Any:
            if self._measurement is None or self._loading or not self._trial.mine:
                return fetch(iterator)
            self._loading = True
            try:
                with self._measurement.data():
                    return fetch(iterator)
            finally:
                self._loading = False

        dataloader._BaseDataLoaderIter.__next__ = fetching  # type: ignore[assignment]  # noqa: SLF001 as above
        iterate = dataloader.DataLoader._get_iterator  # noqa: SLF001 as above

        @wraps(iterate)
        def iterating(loader: Any) -> Any:
            self._loader = weakref.ref(loader)
            return iterate(loader)

        dataloader.DataLoader._get_iterator = iterating  # type: ignore[assignment]  # noqa: SLF001 as above
        self._compiling = torch.compiler.is_compiling

    def _enters(self, module: Any, _arguments: object) -> None:
        if self._compiling():  # the compiler would trace the rest into the compiled model
            return
        if not self._depth and module.training and all(module is not other for other in self._called):
            self._called.append(module)
        self._depth += 1

    def _leaves(self, *_: object) -> None:
        if self._compiling():
            return
        self._depth = max(0, self._depth - 1)

    def _first_step(self, optimizer: Any, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        models = _holding(self._called, trained)
        self._called = []
        if self._trial.recorder() is not None or not self._trial.mine:
            return
        models = models or _outermost(_holding(_modules(), trained))
        if not models:
            return
        from perf_callbacks.integrations.loop.measurement import Measurement  # noqa: PLC0415 torch is imported

        loader = self._loader()

        class WithLoader(Measurement):
            def _objects(self) -> "TrainingObjects":
                return replace(super()._objects(), loaders=() if loader is None else (loader,))

        model = max(models, key=lambda candidate: sum([parameter.numel() for parameter in candidate.parameters()]))
        try:
            self._measurement = WithLoader(model, optimizer, None, None, None).__enter__()
        except Exception as error:  # noqa: BLE001 the trial still measures its steps
            let_pass(error)
            print(f"perf_callbacks: the loop is not measured: {describe(error)}", file=sys.stderr)  # noqa: T201
        self._trial.own_callback = False


def _holding(modules: Iterable[Any], trained: Collection[int]) -> list[Any]:
    return [module for module in modules if any(id(parameter) in trained for parameter in module.parameters())]


def _modules() -> Iterable[Any]:
    from torch import nn  # noqa: PLC0415 the program has imported it

    return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]


def _outermost(modules: Sequence[Any]) -> list[Any]:
    parts = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in parts]
