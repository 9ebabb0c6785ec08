"""Measure the trainers and Accelerate loops of programs without a change to their code.

All Python processes of an armed program import this file when they start, so it imports almost nothing. An
integration is imported only when the program makes a trainer or an accelerator.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec

from perf_callbacks.trials import TRIAL

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, ModuleType
    from typing import Any

SWITCH = "PERF_CALLBACKS"
OFF = frozenset({"", "0", "false", "no", "off"})

SECTION = "perf_callbacks"

RUN = "_PERF_CALLBACKS_RUN"
"""Environment variable of `perf-callbacks run`: id of the main process, and path of a file.

The file exists until something is measured.
"""

NOTHING_MEASURED = (
    "perf_callbacks measured nothing: it found no Hugging Face Trainer, no Lightning Trainer and no Accelerator in "
    "this program. For a loop of your own, use `with perf_callbacks.loop.measure(...)`; `perf-callbacks status` says "
    "what can be measured here."
)


def asked() -> bool:
    """The environment turns measuring on, as with `PERF_CALLBACKS=1`."""
    return os.environ.get(SWITCH, "").strip().lower() not in OFF


def arm() -> None:
    """Measure every trainer and every Accelerate loop of this process from now on. Idempotent."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    if os.environ.get(TRIAL):
        _safely(_join_trial)
    sys.meta_path.insert(0, Finder())
    for name, act in ACTIONS.items():
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is None:
            continue
        if getattr(spec, "_initializing", False):
            _watch(spec)
        else:
            _safely(act, module)
    _expect_a_trainer()


def _join_trial() -> None:
    from perf_callbacks.launch import trial_process  # noqa: PLC0415 in trials alone

    trial_process.join(ACTIONS)


def arm_if_asked() -> None:
    """Call `arm` if the environment turns measuring on, as with `PERF_CALLBACKS=1`."""
    if asked():
        arm()


class Finder:
    """Import finder that runs the action of a module in `ACTIONS` after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in ACTIONS:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)  # old finders have no `find_spec`
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                _watch(spec)
                return spec
        return None


class ImportedSpec(ModuleSpec):
    """Module spec that runs the module's action in `ACTIONS` when the import of the module ends.

    CPython 3.10 to 3.13 set `_initializing` to False when the import is done: see `_load_unlocked` in
    importlib/_bootstrap.py. A replaced `exec_module` would miss modules whose import has already begun, and would
    appear in the traceback of a failed import.
    """

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name == "_initializing" and not value:
            object.__setattr__(self, "__class__", ModuleSpec)
            module = sys.modules.get(self.name)  # gone if its import has failed
            if module is not None:
                _safely(ACTIONS[self.name], module)


def _watch(spec: Any) -> None:
    if type(spec) is ModuleSpec:  # a spec of another class stays as its loader made it
        spec.__class__ = ImportedSpec


def _safely(act: Callable[..., Any], *arguments: object) -> Any:
    """An error is printed once, and the program goes on."""
    try:
        return act(*arguments)
    except Exception as error:  # noqa: BLE001 an observer never ends the run
        _let_pass(error)
        complaint = f"perf_callbacks is off: {error}"
        if complaint not in COMPLAINTS:
            COMPLAINTS.add(complaint)
            _say(complaint)
        return None


def _let_pass(error: Exception) -> None:
    """Raise an exception again if a signal handler of the program raised it."""
    from perf_callbacks.kernel.foreign_errors import let_pass  # noqa: PLC0415 as above

    let_pass(error)


COMPLAINTS: set[str] = set()


def _say(sentence: str) -> None:
    try:
        print(sentence, file=sys.stderr, flush=True)  # noqa: T201 loggers of the program may not be set up
    except Exception as error:  # noqa: BLE001 a program may have closed stderr
        _let_pass(error)


def _arm_transformers(trainer: ModuleType) -> None:
    """Add a callback to each Hugging Face trainer that is made, and to each that begins to train without one.

    The trainer's handler adds the callback: a program may replace `DEFAULT_CALLBACKS`, or the callbacks of a trainer.
    """
    import functools  # noqa: PLC0415 transformers has imported it

    def adding(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(self: Any, *args: object, **kwargs: object) -> Any:
            _safely(_add_callback, self)
            return inner(self, *args, **kwargs)

        return call

    handler = trainer.CallbackHandler
    for event in ("on_init_end", "on_train_begin"):
        setattr(handler, event, adding(getattr(handler, event)))


def _add_callback(handler: Any) -> None:
    from perf_callbacks.integrations.transformers.callback import ArmedCallback  # noqa: PLC0415 transformers is imported

    if not any(isinstance(callback, ArmedCallback) for callback in handler.callbacks):
        handler.callbacks.insert(0, ArmedCallback())


def _arm_accelerate(accelerator: ModuleType) -> None:
    import functools  # noqa: PLC0415 accelerate has imported it

    inner = accelerator.Accelerator.__init__

    @functools.wraps(inner)
    def init(self: object, *args: object, **kwargs: object) -> None:
        inner(self, *args, **kwargs)
        _safely(_attach, self)

    accelerator.Accelerator.__init__ = init


def _arm_accelerate_config(module: ModuleType) -> None:
    import functools  # noqa: PLC0415 accelerate has imported it

    kind = module.BaseConfig
    accept_section(kind)
    for name in ("from_yaml_file", "from_json_file"):

        def reading(inner: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(inner)
            def read(cls: type, *files: str | None, **named: str | None) -> Any:
                for file in (*files, *named.values()):
                    if file is not None:
                        _safely(_export, file)
                return inner(cls, *files, **named)

            return read

        setattr(kind, name, classmethod(reading(getattr(kind, name).__func__)))


def accept_section(kind: Any) -> None:
    process = kind.process_config

    def process_config(content: dict[str, Any]) -> Any:
        content.pop(SECTION, None)
        return process(content)

    kind.process_config = staticmethod(process_config)


def _export(file: str) -> None:
    from pathlib import Path  # noqa: PLC0415 accelerate has imported it

    from perf_callbacks.launch import accelerate_config  # noqa: PLC0415 a config is being read

    os.environ.update(accelerate_config.exports(accelerate_config.load(Path(file)).entries, os.environ))


def _attach(accelerator: Any) -> None:
    """Measure a new accelerator's loop, unless a Hugging Face trainer is making the accelerator."""
    trainers = getattr(sys.modules.get("transformers.trainer"), "Trainer", ())
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 only the stack shows what makes an accelerator
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), trainers):
            return
        frame = frame.f_back
    from perf_callbacks.integrations.accelerate.attachment import Attachment  # noqa: PLC0415 accelerate is imported

    Attachment(accelerator, armed=True)


def lightning_callbacks() -> list[Any]:
    """Return the callback for a trainer of `lightning.pytorch`. Lightning calls this entry point for each trainer."""
    return _safely(_lightning_callbacks, "lightning") or []


def pytorch_lightning_callbacks() -> list[Any]:
    return _safely(_lightning_callbacks, "pytorch_lightning") or []


def _lightning_callbacks(integration: str) -> list[Any]:
    from importlib import import_module  # noqa: PLC0415 Lightning has imported it

    return [import_module(f"perf_callbacks.{integration}").ArmedCallback()] if asked() else []


def _found_a_trainer(session: ModuleType) -> None:
    import atexit  # noqa: PLC0415 the session has imported it

    atexit.unregister(session.say_no_effect)  # armed processes have a message of their own
    _, _, path = os.environ.get(RUN, "").partition(":")
    try:
        os.unlink(path)
    except OSError as error:  # another process was first, or there is no such file
        _let_pass(error)


def _expect_a_trainer() -> None:
    process, _, path = os.environ.get(RUN, "").partition(":")
    if process != str(os.getpid()):
        return
    import atexit  # noqa: PLC0415 for this process alone

    def at_exit() -> None:
        if process == str(os.getpid()):  # not in a fork of the program
            program_ended(path, failed=hasattr(sys, "last_value"))

    atexit.register(_safely, at_exit)


def program_ended(path: str, *, failed: bool) -> None:
    if os.path.exists(path):
        os.unlink(path)
        if not failed and os.environ.get("RANK", "0") == "0":
            _say(NOTHING_MEASURED)


ACTIONS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.trainer": _arm_transformers,
    "accelerate.accelerator": _arm_accelerate,
    "accelerate.commands.config.config_args": _arm_accelerate_config,
    "perf_callbacks.session": _found_a_trainer,
}
"""What to call after the import of a module."""
