"""Join the trial that this process is part of: apply its changes, and measure a plain loop that nothing else measures.

The interpreter imports this file at its start, before the program. So torch is not imported here.
"""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from perf_callbacks.kernel.failures import describe
from perf_callbacks.kernel.foreign_errors import let_pass, suppress
from perf_callbacks.trials import changes, turn
from perf_callbacks.trials.plan import FAILED
from perf_callbacks.trials.turn import Turn

Action = Callable[[ModuleType], None]


def join(actions: dict[str, Action]) -> None:
    """Add the actions of this process's trial to `actions`, which run once a module is imported."""
    found = turn.of_process()
    if found is None:
        return
    with suppress(OSError):  # if memory runs out, the kernel stops the trial, and no other program
        Path("/proc/self/oom_score_adj").write_text("1000")
    own = changes.actions(found)
    own["torch"] = _both(own["torch"], PlainLoop(found).watch)
    for name, act in own.items():
        actions[name] = _checked(found, act if name not in actions else _both(act, actions[name]))


def _both(first: Action, second: Action) -> Action:
    def act(module: ModuleType) -> None:
        first(module)
        second(module)

    return act


def _checked(trial: Turn, act: Action) -> Action:
    """Return an action whose error ends the trial: a trial without its changes would measure something else."""

    def checked(module: ModuleType) -> None:
        try:
            act(module)
        except Exception as error:  # noqa: BLE001 the trial reports the error
            let_pass(error)
            trial.leave(FAILED, f"the changes can't be made: {describe(error)}")

    return checked


class PlainLoop:
    """Measures the loop of a program without a trainer, from its first optimizer step on.

    The model is the largest module that was called from outside of other modules and holds a parameter of the
    optimizer.
    """

    def __init__(self, trial: Turn) -> None:
        self._trial = trial
        self._depth = 0
        self._called: list[Any] = []
        self._handles: list[Any] = []
        self._measurement: Any = None
        self._loading = False

    def watch(self, _torch: ModuleType) -> None:
        """Watch the calls of modules until the first step of an optimizer."""
        import torch.optim.optimizer as optimizers  # noqa: PLC0415 as above
        from torch.nn.modules import module as modules  # noqa: PLC0415 torch has just been imported
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

    def _enters(self, module: Any, _arguments: object) -> None:
        if not self._depth and module.training and all(module is not one for one in self._called):
            self._called.append(module)
        self._depth += 1

    def _leaves(self, *_: object) -> None:
        self._depth = max(0, self._depth - 1)

    def _first_step(self, optimizer: Any, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        trained = {id(one) for group in optimizer.param_groups for one in group["params"]}
        models = [model for model in self._called if any(id(one) in trained for one in model.parameters())]
        self._called = []
        if self._trial.recorder() is not None or not models or not self._trial.mine:
            return
        from perf_callbacks.loop import measure  # noqa: PLC0415 the program has imported torch

        model = max(models, key=lambda one: sum([parameter.numel() for parameter in one.parameters()]))
        try:
            self._measurement = measure(model=model, optimizer=optimizer).__enter__()
        except Exception as error:  # noqa: BLE001 the trial still measures its steps
            let_pass(error)
            print(f"perf_callbacks: the loop is not measured: {describe(error)}", file=sys.stderr)  # noqa: T201
        self._trial.own_callback = False
