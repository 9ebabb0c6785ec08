"""Use the sequence numbers of autograd nodes to find the model calls from which a loss comes."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Start = tuple[int, int]
"""Beginning of a model call: the sequence number of the next autograd node, and the number of earlier calls."""

FIRST: Start = (0, 0)


def next_start(calls: int) -> Start:
    """Return the start of a call that begins now, after `calls` earlier calls."""
    return int(torch.autograd._get_sequence_nr()), calls  # type: ignore[attr-defined]  # noqa: SLF001 nothing public


def reached(roots: Any, starts: Sequence[Start]) -> set[Start]:
    """Return the starts of the model calls that made nodes of the loss's graph.

    `starts` must be in ascending order. A node belongs to the model call that started most recently before the node was
    made. For a loss without a graph, all starts are returned.
    """
    each: Iterable[Any] = roots if isinstance(roots, list | tuple) else (roots,)
    nodes = deque([one.grad_fn for one in each if getattr(one, "grad_fn", None) is not None])
    if not nodes:
        return {*starts}
    every, found, seen = {*starts}, set[Start](), {*nodes}
    while nodes and found != every:
        node = nodes.popleft()
        if node.next_functions:  # the other nodes are parameters, which all graphs share
            found.add(starts[bisect_right(starts, (node._sequence_nr(), len(starts))) - 1])  # noqa: SLF001 nothing public
        following = [one for one, _ in node.next_functions if one is not None and one not in seen]
        seen.update(following)
        nodes.extend(following)
    return found
