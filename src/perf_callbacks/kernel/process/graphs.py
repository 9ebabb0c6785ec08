"""The graph of a loss: which calls of a model it comes from, by the numbers that torch gives to the nodes in order."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Start = tuple[int, int]
"""The beginning of a call: the number of the next node, and how many calls came before."""

FIRST: Start = (0, 0)


def next_start(calls: int) -> Start:
    """Return the start of a call, after some others."""
    return int(torch.autograd._get_sequence_nr()), calls  # type: ignore[attr-defined]  # noqa: SLF001 nothing public


def reached(roots: Any, starts: Sequence[Start]) -> set[Start]:
    """Return which of some starts, in ascending order, a graph has nodes after, up to the next start.

    A loss without a graph may come from all of them.
    """
    each: Iterable[Any] = roots if isinstance(roots, list | tuple) else (roots,)
    nodes = deque([one.grad_fn for one in each if getattr(one, "grad_fn", None) is not None])
    if not nodes:
        return {*starts}
    every, found, seen = {*starts}, set[Start](), {*nodes}
    while nodes and found != every:
        node = nodes.popleft()
        if node.next_functions:  # the others are parameters, which all graphs share
            found.add(starts[bisect_right(starts, (node._sequence_nr(), len(starts))) - 1])  # noqa: SLF001 nothing public
        following = [one for one, _ in node.next_functions if one is not None and one not in seen]
        seen.update(following)
        nodes.extend(following)
    return found
