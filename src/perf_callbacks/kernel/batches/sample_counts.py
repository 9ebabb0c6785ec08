"""Number of samples in a batch, from the leading sizes of its tensors; None if ambiguous."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from perf_callbacks.kernel.batches.tensors import Leaf, is_array, is_packed, leaf, leaves, parts

_MOST_CHANNELS = 4
_IMAGE_SIDE = 8
_ANY = -1
"""Placeholder for further possible numbers of rows, so that a part doesn't decide alone."""
_PLAIN = (str, bytes, int, float, complex)
_ENDS = frozenset({"cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k"})
"""Names of tensors with the ends of sequences that are packed into one row."""

_PACKED = _ENDS | {"position_ids", "seq_idx"}
"""Names of tensors that separate packed sequences."""


def samples(batch: Any, *, several: bool = False, time_first: bool = False) -> int | None:
    """Count the samples of a batch; None if its tensors are ambiguous.

    Token ids decide if there are some. Otherwise each part allows some numbers: a tensor its leading size, a list its
    length if its elements may be samples, and what its elements agree on if they may be columns. The number that all
    parts allow counts, if it is the only one; else the leading size of most parts, if their rows can't be in the second
    dimension instead. The samples of a batch of graphs are its graphs.

    Args:
        batch: A batch of any form.
        several: True: the batch holds a batch from each of several loaders, and their samples add up.
        time_first: True: the model takes sequences whose first dimension may be time, so the leading size of sequences
            alone may be their length.
    """
    if several:
        each = [samples(part, time_first=time_first) for _, part in parts(batch) if leaves(part)]
        known = [amount for amount in each if amount is not None]
        return sum(known) if known and len(known) == len(each) else None
    found = leaves(batch) or []
    ids = matching([one.name for one in found], "input_ids")
    guides = [one for one in found if one.name in ids]
    agreed = {one.rows for one in guides}
    if len(agreed) == 1 and not _holds_several(batch):
        return None if all(map(_is_flat, guides)) or _is_packed_row(found, guides) else agreed.pop()
    if time_first and _are_sequences(found):
        return None
    marks = _marks(found)
    return _laid_end_to_end(found, marks) if marks else _common(batch)


def matching(names: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Return the tensors of this name, else all with this ending, such as `anchor_input_ids` of sentence pairs."""
    last = {name: name.rpartition(".")[2] for name in names}
    same = tuple(name for name, word in last.items() if word == wanted)
    alike = (name for name, word in last.items() if word.endswith("_" + wanted) and not word.startswith("decoder_"))
    return same or tuple(alike)


def _holds_several(batch: Any) -> bool:
    """Return True if a batch is or contains a list of two or more samples or batches with token ids."""
    every = [batch, *(part for _, part in parts(batch))]
    lists = [[leaves(element) or [] for element in part] for part in every if _is_list(part)]
    return any(sum([bool(_ids(found)) for found in elements]) > 1 for elements in lists)


def _ids(found: Sequence[Leaf]) -> list[Leaf]:
    names = matching([one.name for one in found], "input_ids")
    return [one for one in found if one.name in names]


def _is_flat(one: Leaf) -> bool:
    return one.whole and len(one.sizes) == 1


def _is_packed_row(found: Sequence[Leaf], guides: Sequence[Leaf]) -> bool:
    """Return True if sequences are packed into a single row, and another tensor holds their ends."""
    names = {one.name.rpartition(".")[2] for one in found}
    return all([one.rows == 1 for one in guides]) and not names.isdisjoint(_ENDS)


def _marks(found: Sequence[Leaf]) -> dict[str, int]:
    """Return the sizes, by name, of the tensors that assign rows to samples.

    torch_geometric's `ptr` holds the start of each graph and `batch` the graph of each node; Pointcept's `offset` holds
    the end of each point cloud.
    """
    named: dict[str, list[Leaf]] = {}
    for one in found:
        named.setdefault(one.name.rpartition(".")[2], []).append(one)
    flat = {name: ones[0] for name, ones in named.items() if len(ones) == 1 and _is_flat(ones[0])}
    if "ptr" in flat and "batch" in named:
        return {"ptr": flat["ptr"].sizes[0]}
    sizes = [one.rows for one in found]
    each = {name: one.sizes[0] for name, one in flat.items() if "int" in str(one.tensor.dtype)}
    if "batch" in each and sizes.count(each["batch"]) > 1:
        return {"batch": each["batch"]}
    return {"offset": each["offset"]} if "offset" in each and len(sizes) > 1 else {}


def _are_sequences(found: Sequence[Leaf]) -> bool:
    """Return True if all tensors of a batch have the same two leading sizes, so that either may be time."""
    both = {one.sizes[:2] for one in found}
    dimensions = {len(one.sizes) for one in found}
    return len(both) == 1 and len({*both.pop()}) > 1 and dimensions <= {2, 3}


def _laid_end_to_end(found: Sequence[Leaf], marks: Mapping[str, int]) -> int | None:
    """Count samples that are concatenated in the batch's tensors; None if their number is unknown."""
    sizes = {one.rows for one in found if one.name.rpartition(".")[2] not in marks} - {None}
    if "ptr" in marks:
        return marks["ptr"] - 1
    if "batch" in marks:
        others = sizes - {marks["batch"]}
        return others.pop() if len(others) == 1 else None
    return marks["offset"] if len(sizes - {marks["offset"]}) == 1 else None


def _common(batch: Any) -> int | None:
    """Return the only number of rows that all parts allow, else the number of most parts."""
    inside = _with_say(batch)
    if len(inside) == 1 and _is_structure(inside[0]) and _wraps(batch, inside[0]):
        return _common(inside[0])
    found = _allowed(batch, outermost=True)
    if not found:
        return _most(inside) if found is not None else None
    if len(found) > 1:
        plain = [part for _, part in _members(batch) if isinstance(part, tuple | list) and part]
        found &= {len(part) for part in plain if isinstance(part[0], _PLAIN)}
    return found.pop() if len(found) == 1 and _ANY not in found else None


def _wraps(batch: Any, inner: Any) -> bool:
    """Return True if a batch contains only names or numbers besides the inner batch."""
    if _is_list(batch):
        return len(batch) > 1 and all([one is inner or isinstance(one, _PLAIN) for one in batch])
    return not _is_list(inner)


def _allowed(value: Any, *, outermost: bool = False) -> set[int] | None:
    """Return the numbers of rows that a part of a batch allows; None if the part has no rows."""
    if is_array(value) or is_packed(value):
        rows = (leaves(value) or [leaf("", value)])[0].rows
        return None if rows is None else {rows}
    inside = [part for _, part in parts(value)]
    if not inside or not leaves(value):
        return None
    columns = {len(inside[0])} if _are_images_and_targets(inside) else _agreed(inside)
    if not _is_list(value):
        batches = [part for part in inside if _is_list(part) and len({*map(_form, part)}) > 1]
        return columns and columns | ({rows * len(batches) for rows in columns} if _alike(batches) else set())
    if all(map(is_array, inside)):
        return _of_tensors([leaf("", one) for one in inside], value, columns, outermost=outermost)
    structures = all(map(_is_structure, inside)) and not _are_images_and_targets(inside)
    return _of_structures(inside, columns, outermost=outermost) if structures else columns


def _are_images_and_targets(inside: Sequence[Any]) -> bool:
    """Return True for a detection batch: a list of images and a list of as many targets, whose boxes are no samples."""
    if len(inside) != 2 or not all(map(_is_list, inside)):  # noqa: PLR2004
        return False
    images, targets = inside
    return (
        0 < len(images) == len(targets)
        and all(is_array(one) and _is_image(leaf("", one)) for one in images)
        and all(isinstance(one, Mapping) for one in targets)
    )


def _agreed(inside: Sequence[Any]) -> set[int] | None:
    """Return the numbers of rows that all parts with rows allow."""
    some = [rows for rows in map(_allowed, inside) if rows is not None]
    return set.intersection(*some) if some else None


def _of_tensors(inside: Sequence[Leaf], value: Any, columns: set[int] | None, *, outermost: bool) -> set[int] | None:
    """Return the numbers of rows that a list of tensors allows: columns differ in type, samples need not agree."""
    count, first = len(inside), inside[0]
    if len({_form(one.tensor) for one in inside}) > 1 or not first.whole:
        return columns
    if columns is None:
        return {count}
    if not columns:
        return {count, _ANY} if outermost else {count}
    integers = "int" in str(first.tensor.dtype) and len(first.sizes) == 2  # noqa: PLR2004 token ids and labels
    few = count <= 2 + integers and len(first.sizes) > 1 and not all(map(_may_be_image, inside))
    if outermost and (few or isinstance(value, tuple)):
        return columns
    return columns | {count, _ANY} if few else columns | {count}


def _of_structures(inside: Sequence[Any], columns: set[int] | None, *, outermost: bool) -> set[int] | None:
    """Return the numbers of rows that a list of mappings, lists or objects allows: of samples, or of batches."""
    count = len(inside)
    several = {rows * count for rows in columns or ()}
    if not _alike(inside):
        keys = [{*map(str, part)} for part in inside if isinstance(part, Mapping)]
        return (columns or set()) | several if len(keys) > 1 and set.intersection(*keys) else columns
    lists = all([_is_list(part) and _alike(part) for part in inside])  # columns of samples, or samples of alike parts
    if all(map(_is_sample, inside)) and not lists:
        return {count}
    if count == 1 and not lists:
        return columns
    if lists:
        return (columns or set()) | {len(part) for part in inside} | {count}
    if outermost and not columns:
        return {count, _ANY}  # batches of several sizes, or samples of several
    return (columns or set()) | several | {count}


def _is_sample(element: Any) -> bool:
    """Return True if an element of a list is certainly a sample. False: the element may also be a batch."""
    found = leaves(element) or []
    ids, names = _ids(found), {one.name.rpartition(".")[2] for one in found}
    if _is_list(element) and len(element) > 1 and is_array(element[0]) and isinstance(element[1], Mapping):
        return _is_image(leaf("", element[0]))
    if ids:
        return all(map(_is_flat, ids)) and names.isdisjoint(_PACKED)
    if {"ptr", "batch"} <= names or not all([one.whole for one in found]):
        return False
    sized = [one for one in found if one.rows is not None]
    if len({one.rows for one in sized}) > 1:
        return not _is_time_major(sized)
    scalar = len(sized) < len(found) or any([isinstance(part, _PLAIN) for _, part in _members(element)])
    if len(sized) <= 1 or all([len(one.sizes) == 1 for one in sized]):
        return scalar or not sized or (len(sized) == 1 and (len(sized[0].sizes) == 1 or _is_image(sized[0])))
    return all(map(_is_image, sized))


def _is_time_major(found: Sequence[Leaf]) -> bool:
    """Return True if the second size of all sequences equals the size of the columns."""
    columns = {one.rows for one in found if len(one.sizes) == 1}
    return {one.sizes[1] for one in found if len(one.sizes) > 1} == columns


def _is_image(one: Leaf) -> bool:
    """Return True if a tensor has the sizes of an image: channels, height, width."""
    return _may_be_image(one) and one.sizes[0] in {1, 3} and min(one.sizes[1:]) >= _IMAGE_SIDE


def _may_be_image(one: Leaf) -> bool:
    return len(one.sizes) == 3 and one.sizes[0] <= _MOST_CHANNELS  # noqa: PLR2004


def _most(inside: Sequence[Any]) -> int | None:
    """Return the leading size of more than half of the parts; None if there is none."""
    votes = [_allowed(part) or set() for part in inside]
    if len({*map(frozenset, [vote for part, vote in zip(inside, votes, strict=True) if not is_array(part)])}) > 1:
        return None
    sizes = [next(iter(vote)) if len(vote) == 1 else None for vote in votes]
    size, count = Counter(sizes).most_common(1)[0] if sizes else (None, 0)
    if size is None or 2 * count <= len(sizes):
        return None
    winners = [leaf("", part) for part, vote in zip(inside, sizes, strict=True) if vote == size and is_array(part)]
    for other in {*sizes} - {size, None}:
        if all(one.sizes[1:2] == (other,) for one in winners):
            return None
    return size


def _with_say(batch: Any) -> list[Any]:
    """List the parts of a batch that have rows, or may have rows."""
    return [part for _, part in parts(batch) if _allowed(part) is not None]


def _members(value: Any) -> list[tuple[Any, Any]]:
    """List the contents of a container, even if its first element is a plain value."""
    return [*enumerate(value)] if _is_list(value) else parts(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields")


def _is_structure(value: Any) -> bool:
    return not (is_array(value) or is_packed(value) or isinstance(value, _PLAIN) or value is None)


def _alike(elements: Sequence[Any]) -> bool:
    """Return True if all elements have the same form. False for an empty list."""
    return len({*map(_form, elements)}) == 1


def _form(element: Any) -> object:
    """Return the form of an element, which is equal for all samples: dimensions and dtype, names, or parts."""
    if is_array(element):
        return len(leaf("", element).sizes), str(element.dtype)
    if _is_list(element):
        return tuple(map(_form, element))
    return tuple(map(str, element)) if isinstance(element, Mapping) else type(element)
