"""Interrupt short fits by a signal at random moments, and look at what is left of them in the process.

    python benchmarks/interrupts.py                        # 100 moments, in turn through four ways
    python benchmarks/interrupts.py --moments 40 --seed 7 --ways loop accelerate
    python benchmarks/interrupts.py --raising --moments 600
    PERF_CALLBACKS=0 python benchmarks/interrupts.py --raising --moments 600

Each fit gets a KeyboardInterrupt from a timer, which is caught, and all that belongs to the fit is dropped. Within ten
seconds the collector, hooks, modes, threads and open files have to be as they were before. What is not is printed,
with what a garbage collection sees to.

With `--raising`, the handler of the signal raises an ordinary exception instead, as a program does that wants to be
preempted. It is lost if the handler ran and the fit ended without it. `PERF_CALLBACKS=0` is the control.
"""

import argparse
import contextlib
import functools
import gc
import io
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

PATIENCE_SECONDS = 10.0
OURS = "perf_callbacks watchdog"
STEPS = 5
FILES = Path("/proc/self/fd")


def state() -> dict[str, object]:
    """Read what a fit may change in this process."""
    frame: Any = sys.modules["torch._dynamo.eval_frame"]
    return {
        "collector on": gc.isenabled(),
        "thresholds": gc.get_threshold(),
        "frozen": gc.get_freeze_count() > 1000,
        "gc callbacks": len(gc.callbacks),
        "backward": id(torch.autograd.backward),
        "grad": id(torch.autograd.grad),
        "module hooks": len(_global_forward_pre_hooks) + len(_global_forward_hooks),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "compile stance": str(vars(frame)["_stance"].stance),
        "warning filters": sum("global hooks" in str(getattr(one[1], "pattern", "")) for one in warnings.filters),
        "threads": sorted(one.name for one in threading.enumerate() if "perf" in one.name and one.name != OURS),
        "open files": len([*FILES.iterdir()]) if FILES.is_dir() else 0,
    }


def ways() -> dict[str, Callable[[Path], object]]:
    """Short fits through each of the integrations."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from trainings.accelerated import an_accelerator, prepared, rows_of_tokens, train
    from trainings.doors import DOORS

    from perf_callbacks.accelerate import attach
    from perf_callbacks.loop import measure

    def accelerate(directory: Path) -> None:  # nobody tells of its end
        for kind in (AcceleratorState, GradientState, PartialState):
            kind._reset_state()  # noqa: SLF001 there is no public way
        accelerator = an_accelerator(directory)
        attach(accelerator)
        train(accelerator, *prepared(accelerator, rows_of_tokens(2 * STEPS)))

    def forgotten(_directory: Path) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        perf = measure(model=model, optimizer=optimizer, loader=[torch.ones(2, 4)] * STEPS).__enter__()
        for batch in perf.loader:
            model(batch).mean().backward()
            optimizer.step()

    return {
        "loop": lambda directory: DOORS["loop"](directory, steps=STEPS).run(),
        "forgotten loop": forgotten,
        "accelerate": accelerate,
        "transformers": lambda directory: DOORS["transformers"](directory, steps=STEPS).run(),
        "lightning": lambda directory: DOORS["lightning"](directory, steps=STEPS).run(),
    }


def run(way: Callable[[Path], object], after: float | None) -> tuple[str | None, float]:
    """Run one fit; the way in which it was interrupted, where it was, and its seconds."""
    raised, began = None, time.perf_counter()
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        before = Path.cwd()
        os.chdir(directory)
        try:
            if after is not None:
                signal.setitimer(signal.ITIMER_REAL, after)
            way(Path(directory))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:  # noqa: BLE001 Lightning makes a SystemExit of it
            raised = type(error).__name__
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.chdir(before)
    return raised, time.perf_counter() - began


class PreemptError(Exception):
    """Raised by the handler."""


def lengths(ways: dict[str, Callable[[Path], object]]) -> dict[str, float]:
    """Measure undisturbed fits, in a process that need not go through all that was ever imported to collect garbage."""
    for way in ways.values():
        run(way, None)  # lazy imports, a measured peak
    gc.collect()
    gc.freeze()
    return {name: min([run(way, None)[1] for _ in range(3)]) for name, way in ways.items()}


def raising(moments: int, seed: int, chosen: list[str] | None) -> None:
    """Raise within fits, and count the exceptions that are lost."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from trainings.doors import DOORS

    places: list[list[str]] = []

    def handle(_signum: int, frame: Any) -> None:
        stack = traceback.extract_stack(frame)[-4:]
        places.append([f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(stack)])
        raise PreemptError

    def fit(name: str, directory: Path) -> None:
        for kind in (AcceleratorState, GradientState, PartialState):
            kind._reset_state()  # noqa: SLF001 there is no public way
        DOORS[name](directory, steps=STEPS).run()

    signal.signal(signal.SIGALRM, handle)
    sys.unraisablehook = lambda _: None
    names = chosen or ["loop", "accelerate", "transformers", "lightning"]
    ways = {name: functools.partial(fit, name) for name in names}
    drawn, sent, lost = random.Random(seed), Counter[str](), Counter[str]()
    seconds = lengths(ways)
    for number in range(moments):
        name = names[number % len(names)]
        places.clear()
        raised, _ = run(ways[name], drawn.uniform(0, 0.9 * seconds[name]))
        if places:
            sent[name] += 1
            if raised != PreemptError.__name__:
                lost[name] += 1
                print(f"{number}: {name}: ended with {raised}; raised at {' < '.join(places[0])}", flush=True)
        if number % 20 == 0:
            gc.collect()
    for name in names:
        print(f"{name:14} {sent[name]:4} raised, {lost[name]} lost")
    print(f"{'all':14} {sent.total():4} raised, {lost.total()} lost")


def different(before: dict[str, object]) -> dict[str, str]:
    """Tell what is not as it was."""
    return {name: f"{before[name]} -> {value}" for name, value in state().items() if value != before[name]}


def waited(before: dict[str, object]) -> dict[str, str]:
    """Tell what is not as it was after a while, in which the watchdog does what it has to do."""
    from perf_callbacks.kernel.process.watchdog import WATCHDOG

    end = time.monotonic() + PATIENCE_SECONDS
    while (left := different(before)) and time.monotonic() < end:
        WATCHDOG.tick()
        time.sleep(0.1)
    return left


def main() -> None:
    """Interrupt, look, and print a table of what was left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="*")
    parser.add_argument("--raising", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if given.raising:
        raising(given.moments, given.seed, given.ways)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    chosen = {name: way for name, way in ways().items() if not given.ways or name in given.ways}
    drawn, leaks, hit = random.Random(given.seed), Counter[str](), Counter[str]()
    seconds = {}
    for name, way in chosen.items():
        run(way, None)  # lazy imports, a measured peak
        gc.collect()
        seconds[name] = min([run(way, None)[1] for _ in range(3)])
        gc.collect()
    for number in range(given.moments):
        name = [*chosen][number % len(chosen)]
        before = state()
        raised, _ = run(chosen[name], drawn.uniform(0, 0.9 * seconds[name]))
        hit[f"{name}: {raised}"] += 1
        left = waited(before)
        if left:
            gc.collect()
            cycles = {one for one in left if one not in different(before)}
            for what in left:
                leaks[f"{name}: {what}{' until gc.collect()' * (what in cycles)}"] += 1
            print(f"{number}: {name}, {raised}: {left}{f', of which gc.collect() sees to {cycles}' * bool(cycles)}")
            sys.stdout.flush()
    for text, count in sorted(hit.items()):
        print(f"{count:4} {text}")
    print("left after ten seconds:" if leaks else "nothing was left after ten seconds")
    for text, count in leaks.most_common():
        print(f"{count:4} {text}")


if __name__ == "__main__":
    main()
