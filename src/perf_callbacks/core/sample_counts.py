"""Number of samples in a batch, from the leading sizes of its tensors; unknown if they are ambiguous."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perf_callbacks.core.batch_tensors import Leaf, is_array, leaf, leaves, parts


def samples(batch: Any, *, several: bool = False) -> int | None:
    """Count the samples of a batch; None if its tensors are ambiguous.

    Token ids decide if there are some. Otherwise one of these must hold: all tensors agree on their leading size; each
    part of the batch is a tensor or a list with as many rows, and the tensors in a list differ in size; or most parts
    agree and their rows can't be in the second dimension instead. The samples of a batch of graphs are its graphs.

    Args:
        batch: A batch of any form.
        several: True: it has a batch from each of several loaders, whose samples add up.
    """
    if several:
        each = [samples(part) for _, part in parts(batch) if leaves(part)]
        known = [amount for amount in each if amount is not None]
        return sum(known) if known and len(known) == len(each) else None
    found = leaves(batch) or []
    ids = matching([one.name for one in found], "input_ids")
    guides = [one for one in found if one.name in ids]
    agreed = {one.rows for one in guides}
    if len(agreed) == 1:
        return None if all(one.whole and len(one.sizes) == 1 for one in guides) else agreed.pop()
    return _graphs(found) or _agreed(found) or _in_lists(batch) or _most(batch)


def matching(names: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Return the tensors of that name, else all whose names end in it (as `anchor_input_ids` of sentence pairs)."""
    last = {name: name.rpartition(".")[2] for name in names}
    same = tuple(name for name, word in last.items() if word == wanted)
    alike = (name for name, word in last.items() if word.endswith("_" + wanted) and not word.startswith("decoder_"))
    return same or tuple(alike)


def _agreed(found: Sequence[Leaf]) -> int | None:
    """Return the leading size that all tensors share. A number has none."""
    sizes = {one.rows for one in found if one.rows is not None}
    return sizes.pop() if len(sizes) == 1 else None


def _graphs(found: Sequence[Leaf]) -> int | None:
    """Count the graphs of a torch_geometric batch: `ptr` has each graph's start, `batch` each node's graph."""
    names = {one.name.rpartition(".")[2] for one in found}
    ends = {one.sizes[0] for one in found if one.name.rpartition(".")[2] == "ptr" and len(one.sizes) == 1}
    return ends.pop() - 1 if "batch" in names and len(ends) == 1 else None


def _in_lists(batch: Any) -> int | None:
    """Count the rows of parts that are tensors, or lists with one element per row: images, targets by image.

    A list of tensors of equal size may also be a list of columns, so at least one list must hold elements that can only
    be rows.
    """
    some, proved = [], False
    for part in _parts_with_tensors(batch):
        found = leaves(part) or []
        sizes = {_agreed(found)} - {None}
        if _is_list(part) and not is_array(part):
            if not sizes and len({_form(element) for element in part}) == 1:
                proved = True
            sizes.add(len(part))
        some.append(sizes)
    common = set.intersection(*some) if len(some) > 1 and proved else set()
    return common.pop() if len(common) == 1 else None


def _most(batch: Any) -> int | None:
    """Return the leading size of more than half of the parts."""
    every = _parts_with_tensors(batch)
    nested = {_agreed(leaves(part) or []) for part in every if not is_array(part)}
    if len(nested) > 1:
        return None
    votes = [_agreed(leaves(part) or []) for part in every]
    size, count = Counter(votes).most_common(1)[0] if votes else (None, 0)
    if size is None or 2 * count <= len(votes):
        return None
    winners = [leaf("", part) for part, vote in zip(every, votes, strict=True) if vote == size and is_array(part)]
    for other in {*votes} - {size, None}:
        if all(one.sizes[1:2] == (other,) for one in winners):
            return None
    return size


def _parts_with_tensors(batch: Any) -> list[Any]:
    """List the parts of a batch that have rows or may have them; of a batch within a batch, those of the inner one."""
    found = [part for _, part in parts(batch) if any(one.rows is not None for one in leaves(part) or [])]
    if len(found) == 1 and not is_array(found[0]) and not _is_list(found[0]):
        return _parts_with_tensors(found[0])
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields")


def _form(element: Any) -> object:
    """Return the sizes that elements share if they are rows."""
    if is_array(element):
        return len(leaf("", element).sizes)
    return tuple(map(str, element)) if isinstance(element, Mapping) else type(element)
