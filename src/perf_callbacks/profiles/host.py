"""Find the operation, the module and the Python function to which each event of a host thread belongs."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from perf_callbacks.profiles.intervals import Interval
from perf_callbacks.profiles.trace_events import NO_ARGUMENTS, Arguments, number

MODULE = "nn.Module: "  # of module calls, both in torch.profiler's Python stacks and in our own events

LEVELS = 3  # of a module path

DATA = re.compile(r"^enumerate\(DataLoader\)#")

STEP = re.compile(r"^ProfilerStep#?(\d{1,18})\b")

_DEPTH = 100  # enclosing operations that are stored: in a damaged trace, all may enclose each other

_OPTIMIZER = "Optimizer.step#"

_BACKWARD = "autograd::engine::evaluate_function"

_FUNCTION = re.compile(r"^(.*\.py)\((\d+)\): (.*)$")

_SITE = re.compile(r"^.*?(?:site|dist)-packages/|^.*?/lib/python\d[\d.]*/")

_LIBRARY = re.compile(r"^(?:torch/|threading\.py|contextlib\.py|importlib/|<)")


Thread = tuple[str, str]  # process id and thread id

Modules = tuple[str, ...] | None


@dataclass(slots=True, eq=False)
class Call:
    """Event of a host thread, such as an operation, an annotation, a CUDA runtime call or a Python function."""

    start: float
    end: float
    name: str
    kind: str  # "operation", "annotation", "module", "runtime" or "python"
    thread: Thread
    arguments: Arguments = NO_ARGUMENTS
    correlation: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CallSite:
    """Place in the program from which a call was made."""

    operations: tuple[Call, ...] = ()  # those that enclose the call, the innermost first
    in_optimizer: bool = False
    in_data: bool = False
    line: str | None = None
    """File, line and name of the innermost Python function outside of torch, or else of the innermost."""
    modules: Modules = None
    """At most `LEVELS` enclosing modules, the outermost first; None if unknown. With our own module events, only the
    path of the innermost."""

    @property
    def nodes(self) -> list[Call]:
        """The innermost first."""
        return [call for call in self.operations if call.name.startswith(_BACKWARD)]


NOWHERE = CallSite()


@dataclass(slots=True)
class Host:
    """Calls of all host threads, sorted by start. The `CallSite` of an operation includes itself."""

    calls: list[Call]
    origins: dict[int, CallSite] = field(default_factory=dict)  # by the call's `id`; none for Python functions
    self_times: list[tuple[Call, Interval]] = field(default_factory=list)
    """Time of each operation or collective without nested operations."""
    has_modules: bool = False

    def call_site(self, call: Call | None) -> CallSite:
        return NOWHERE if call is None else self.origins.get(id(call), NOWHERE)


class _Forward:
    """Modules that enclose each forward operation, by its thread and sequence number.

    The autograd node that an operation makes has its sequence number. Threads count separately; of several operations
    of a thread with the same number, the most recent one made the node.
    """

    def __init__(self) -> None:
        self._first: defaultdict[Thread, dict[float, Modules]] = defaultdict(dict)
        self._again: defaultdict[Thread, dict[float, Modules]] = defaultdict(dict)

    def add(self, call: Call, origin: CallSite, *, again: bool) -> None:
        sequence = number(call.arguments.sequence)
        if sequence is not None:
            (self._again if again else self._first)[call.thread][sequence] = origin.modules

    def modules(self, thread: Thread, nodes: Sequence[Call]) -> Modules:
        """With activation checkpointing, the node's operation may have run again within an outer node of `nodes`."""
        sequence = number(nodes[0].arguments.sequence)
        if sequence is None:
            return None
        threads = [self._again[thread]] if len(nodes) > 1 else []
        owners = [made[sequence] for made in [*threads, *self._first.values()] if sequence in made]
        return next(filter(None, owners), None)


def read(calls: Iterable[Call]) -> Host:
    host = Host(sorted(calls, key=lambda call: (call.start, -call.end, call.kind, call.name, call.thread)))
    threads: dict[Thread, list[Call]] = {}
    for call in host.calls:
        threads.setdefault(call.thread, []).append(call)
        host.has_modules |= call.kind == "module" or (call.kind == "python" and call.name.startswith(MODULE))
    forward, backward = _Forward(), list[tuple[Call, list[Call]]]()
    for thread in threads.values():
        _walk(host, thread, forward, backward)
    for call, nodes in backward if host.has_modules else ():  # the module whose forward made the node
        origin = host.origins[id(call)]
        if not origin.modules:
            host.origins[id(call)] = replace(origin, modules=forward.modules(call.thread, nodes))
    return host


def _walk(host: Host, thread: Sequence[Call], forward: _Forward, backward: list[tuple[Call, list[Call]]]) -> None:
    """Find the `CallSite` of each call of one thread. The stack holds the calls around the current one."""
    stack = list[tuple[Call, CallSite]]()
    inner: dict[int, list[Interval]] = {}
    for call in thread:
        while stack and stack[-1][0].end <= call.start:
            stack.pop()
        origin = _within(stack[-1][1] if stack else NOWHERE, call)
        if is_work(call):
            inner[id(call)] = []
            outer = next((enclosing for enclosing, _ in reversed(stack) if id(enclosing) in inner), None)
            if outer is not None:
                inner[id(outer)].append(Interval(call.start, min(call.end, outer.end)))
        stack.append((call, origin))
        if call.kind == "python":
            continue
        host.origins[id(call)] = origin
        nodes = origin.nodes
        if nodes:
            backward.append((call, nodes))
        if call.kind == "operation" and (origin.modules or not nodes):
            forward.add(call, origin, again=bool(nodes))
    for call in thread:
        if id(call) in inner:
            host.self_times += [(call, part) for part in _rest(call, inner[id(call)])]


def _rest(call: Call, inner: Iterable[Interval]) -> Iterator[Interval]:
    begin = call.start
    for start, end in inner:
        if start > begin:
            yield Interval(begin, start)
        begin = max(begin, end)
    if call.end > begin:
        yield Interval(begin, call.end)


def is_work(call: Call) -> bool:
    """Not the events that span a whole step, a fetch of the DataLoader or an optimizer's step."""
    if call.kind == "operation":
        return not DATA.match(call.name) and not STEP.match(call.name) and not call.name.startswith("Optimizer.")
    return call.kind == "annotation" and call.name.startswith(("gloo:", "mpi:", "ucc:"))


def _within(outer: CallSite, call: Call) -> CallSite:
    if call.kind == "python":
        return _in_function(outer, call.name)
    if call.kind == "module":
        return replace(outer, modules=(call.name.removeprefix(MODULE),), in_optimizer=False)
    if call.kind == "runtime":
        return outer
    if STEP.match(call.name):  # our loops end a step within the optimizer's step, and the next step begins there
        outer = CallSite(line=outer.line)
    optimizer = outer.in_optimizer or call.name.startswith(_OPTIMIZER)
    data = outer.in_data or DATA.match(call.name) is not None
    if call.kind == "annotation":
        return replace(outer, in_optimizer=optimizer, in_data=data)
    # Lightning runs forward and backward in a closure of the optimizer. The optimizer itself makes no graph.
    backward = call.name.startswith(_BACKWARD)
    optimizer = optimizer and not backward and number(call.arguments.sequence) is None
    modules = None if backward else outer.modules  # a module may run a backward in its forward
    return CallSite((call, *outer.operations[:_DEPTH]), optimizer, data, outer.line, modules)


def _in_function(outer: CallSite, name: str) -> CallSite:
    if name.startswith(MODULE):
        modules = outer.modules or ()
        return outer if len(modules) == LEVELS else replace(outer, modules=(*modules, name.removeprefix(MODULE)))
    line = _line(outer.line, name)
    return outer if line == outer.line else replace(outer, line=line)


def _line(outer: str | None, name: str) -> str | None:
    """Keep `outer`, the caller, unless `name` has a line and is not deeper in torch or Python's library."""
    shown, library = _function(name)
    if shown is None or (library and outer is not None and not _LIBRARY.match(outer)):
        return outer
    return shown


@lru_cache(maxsize=1 << 16)
def _function(name: str) -> tuple[str | None, bool]:
    """Return the name without the installation path, and True if torch or Python defines it."""
    if not _FUNCTION.match(name):
        return None, True
    shown = _SITE.sub("", name)
    return shown, _LIBRARY.match(shown) is not None
