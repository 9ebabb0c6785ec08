"""Python stack of another thread, read without stopping the thread."""

import dis
import functools
import sys
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

MOST_FRAMES = 20

DEEPEST = 1000
"""Most frames that a search through a stack visits."""

_OURS = str(Path(__file__).parents[2])
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_BACKWARD = "torch.autograd"
_COLLECTIVES = ("torch.distributed", "torch.nn.parallel.distributed", _BACKWARD)
FRAMEWORKS = ("accelerate.", "lightning.", "pytorch_lightning.", "torch.utils.data.", "transformers.", "trl.")
"""Frameworks with their own training loop. While the program calls into one, `position` returns None."""
_OPERATIONS = "torch._ops"
_TORCH = "torch."
_FUNCTIONS = ("torch.functional.", "torch.nn.functional.")
"""Modules of torch that the program calls for a single operation."""
_MODULES, _OPTIMIZERS = "torch.nn.modules.module", "torch.optim.optimizer"
_WAITS = ("wait", "wait_tensor", "monitored_barrier")
"""C methods that wait for other ranks. Waits within a rank, as `Thread.join`, have an innermost line in the stdlib."""
_STORE_WAITS = ("get", "multi_get", "barrier")
"""Waits of a store for other ranks. Methods of other objects may have the same names."""
_POLLS = ("is_completed", "query", "exists", "is_file", "isfile", "is_set")
"""Functions that say whether something has happened, such as the end of a collective or a new file."""
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy")


@dataclass(frozen=True, slots=True)
class Stack:
    """Position of a thread in its Python code."""

    frames: tuple[str, ...]
    """`file:line function`, the innermost last, without frames of this package."""
    place: str
    """Innermost line of the user's own code and, if different, the innermost line of all."""
    waits: bool
    """True: the thread waits for other ranks, as in a collective or a backward."""


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def callers() -> Iterator[FrameType]:
    """Iterate over the calling frames, the innermost first, without the frame of the function that iterates."""
    return outward(sys._getframe(2))  # noqa: SLF001 the one way to the caller


def of_thread(thread: int) -> Stack | None:
    """None: the thread runs no Python code, waits at a prompt, or is in a debugger."""
    inmost = sys._current_frames().get(thread)  # noqa: SLF001 the one way to a thread's frame
    frames = [frame for frame in islice(outward(inmost), DEEPEST) if not frame.f_code.co_filename.startswith(_OURS)]
    if not frames or _person([_module(frame) for frame in frames]):
        return None
    inner = frames[0]
    own = next((frame for frame in frames if _is_own(frame.f_code.co_filename)), inner)
    apart = own is not inner and not _module(inner).startswith(_BACKWARD)  # the stage already says backward
    return Stack(
        tuple(
            [
                f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                for frame in reversed(frames[:MOST_FRAMES])
            ]
        ),
        f"{_line(own)}, in {_line(inner)}" if apart else _line(own),
        _waits(frames),
    )


def _waits(frames: list[FrameType]) -> bool:
    """Judge the innermost frame by its module and the names on its line."""
    modules = [_module(frame) for frame in frames]
    if modules[0].startswith(_COLLECTIVES):
        return True
    caller = next((frame for frame, module in zip(frames, modules, strict=True) if module != _OPERATIONS), frames[0])
    names = _names(caller)
    stored = any(["store" in name.lower() for name in names])
    return any([name in _WAITS or (stored and name in _STORE_WAITS) for name in names])


def _names(frame: FrameType) -> set[str]:
    """Return the names that the current line of a frame has loaded so far. No file is read, because a disk may hang."""
    line, last = frame.f_lineno, frame.f_lasti
    spans = [(start, min(stop, last)) for start, stop, at in frame.f_code.co_lines() if at == line and start <= last]
    if not spans:
        return set()
    loads = [
        instruction for instruction in dis.get_instructions(frame.f_code) if instruction.opname.startswith("LOAD_")
    ]
    return {
        instruction.argval
        for instruction in loads
        if isinstance(instruction.argval, str) and any([start <= instruction.offset <= stop for start, stop in spans])
    }


class Position(NamedTuple):
    """Position of a thread in the program's own code."""

    line: str
    in_torch: bool
    """True: the line has called a Python function of torch that runs several operations."""
    in_model: bool
    """True: the line is part of a module's forward or of an optimizer's own update."""
    polls: bool = False
    """True: the line waits, in a loop that only asks whether something has happened."""


def position(thread: int, outer: Collection[int] = ()) -> Position | None:
    """None: the innermost line called a framework of `FRAMEWORKS`. Frames whose ids are in `outer` hold no position."""
    return _position(sys._current_frames().get(thread), outer)  # noqa: SLF001 as above


def around_trainer() -> frozenset[int]:
    """Return the ids of the program's frames that have called the trainer whose hook runs now.

    They live as long as the trainer trains, so no other frame gets their ids. Frames within the trainer don't count.
    """
    files = ((id(frame), frame.f_code.co_filename) for frame in callers())
    outer = dropwhile(lambda item: item[1].startswith(_OURS) or _is_own(item[1]), files)
    return frozenset([frame for frame, file in outer if _is_own(file)])


def calling_line() -> str | None:
    place = _position(sys._getframe(2))  # noqa: SLF001 no stack is made
    return None if place is None else place.line


def _position(frame: FrameType | None, outer: Collection[int] = ()) -> Position | None:
    called = ""
    for caller in islice(outward(frame), DEEPEST):
        if caller.f_code.co_filename.startswith(_OURS):
            continue
        if id(caller) in outer:
            return None
        if _is_own(caller.f_code.co_filename):
            if called.startswith(FRAMEWORKS):
                return None
            in_torch = called.startswith(_TORCH) and not called.startswith(_FUNCTIONS)
            polls = any([start <= caller.f_lasti <= stop for start, stop in _polling(caller.f_code)])
            return Position(_line(caller), in_torch, _in_model(caller), polls)
        called = f"{_module(caller)}."
    return None


@functools.lru_cache(64)
def _polling(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Return the bytecode of each `while` loop that asks whether something has happened and stores no result."""
    loops, body = [], [*dis.get_instructions(code)]
    for last in body:
        if "JUMP" in last.opname and isinstance(last.argval, int) and last.argval < last.offset:
            loop = [step for step in body if last.argval <= step.offset <= last.offset]
            computes = any([step.opname == "FOR_ITER" or step.opname.startswith("STORE_") for step in loop])
            if not computes and any([step.argval in _POLLS for step in loop]):
                loops.append((last.argval, last.offset))
    return tuple(loops)


def _in_model(frame: FrameType) -> bool:
    """Return True if a frame, or one of its callers, is a module's forward or an optimizer's own update."""
    updates = False
    for caller in islice(outward(frame), DEEPEST):
        name, module = caller.f_code.co_name, _module(caller)
        if module == _MODULES or (name == "forward" and not module.startswith(_TORCH)):
            return True
        updates = updates or (name == "step" and not module.startswith(_TORCH))
        if updates and module == _OPTIMIZERS:
            return True
    return False


def _person(modules: list[str]) -> bool:
    """Return True if a debugger waits for input, or a notebook for its next cell."""
    if any([module.partition(".")[0] in _DEBUGGERS for module in modules]):
        return True
    return "ipykernel.kernelapp" in modules and "IPython.core.interactiveshell" not in modules


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_own(file: str) -> bool:
    return not file.startswith(("<", *_INSTALLED)) and "site-packages" not in file


def _line(frame: FrameType) -> str:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]  # Python 3.10 has no such name
    return f"{Path(code.co_filename).name}:{frame.f_lineno} `{name}`"
