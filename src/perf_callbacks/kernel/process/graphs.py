"""Finds the model calls from which a loss comes, by the sequence numbers of autograd nodes."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Start = tuple[int, int]
"""Of a model call: sequence number of the next autograd node, and number of earlier calls."""

FIRST: Start = (0, 0)


def next_start(calls: int) -> Start:
    return int(torch.autograd._get_sequence_nr()), calls  # type: ignore[attr-defined]  # noqa: SLF001 nothing public


def reached(roots: Any, starts: Sequence[Start]) -> set[Start]:
    """Return the starts, of an ascending list, after which nodes of the loss's graph were made; all without a graph."""
    each: Iterable[Any] = roots if isinstance(roots, list | tuple) else (roots,)
    nodes = deque([root.grad_fn for root in each if getattr(root, "grad_fn", None) is not None])
    if not nodes:
        return {*starts}
    every, starts_reached, seen = {*starts}, set[Start](), {*nodes}
    while nodes and starts_reached != every:
        node = nodes.popleft()
        if node.next_functions:  # the other nodes are parameters, which all graphs share
            starts_reached.add(starts[bisect_right(starts, (node._sequence_nr(), len(starts))) - 1])  # noqa: SLF001 nothing public
        following = [parent for parent, _ in node.next_functions if parent is not None and parent not in seen]
        seen.update(following)
        nodes.extend(following)
    return starts_reached
