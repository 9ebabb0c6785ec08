"""Counts the samples of a batch, from the first dimension of its tensors."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perf_callbacks.kernel.batches.tensors import Leaf, is_array, is_packed, leaf, leaves, parts

_PLAIN = (str, bytes, int, float, complex)
_ENDS = frozenset({"cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k"})
"""Tensors of the ends of sequences, if all sequences are packed into one row."""

_MARKS = frozenset({"ptr", "batch", "offset"})
"""Tensors that assign rows to samples. torch_geometric's `ptr` holds each graph's start, then the end of the last."""

_FEW = 3
"""Most columns of equal form in a list. In a longer list, each tensor may be a sample."""


def samples(
    batch: Any, *, several: bool = False, time_first: bool = False, constants: Collection[int] = ()
) -> int | None:
    """Return the number of samples of a batch, or None if its tensors are ambiguous.

    The first dimension of the token ids counts the samples, or else the size on which more than half of the elements
    agree. Only a vector may be in the minority, and only if a tensor of more dimensions is in the majority: constants,
    such as means and class weights, are vectors too, and there may be more of them than data. In a batch of graphs,
    each graph is a sample. `several` batches, one from each of several loaders, add up. With `time_first`, sequences
    alone are ambiguous. `constants` are the `id`s of tensors that all batches share.
    """
    if several:
        each = [samples(part, time_first=time_first) for _, part in parts(batch) if leaves(part)]
        amounts = [amount for amount in each if amount is not None]
        return sum(amounts) if amounts and len(amounts) == len(each) else None
    entries = leaves(batch) or []
    ids = matching([entry.name for entry in entries], "input_ids")
    guides = [entry for entry in entries if entry.name in ids]
    agreed = {entry.rows for entry in guides}
    if time_first and _are_sequences(entries):
        return None
    if len(agreed) == 1 and not _holds_several(batch):
        unsure = all(map(_is_flat, guides)) or _is_packed_row(entries, guides) or _have_time_first(entries, guides)
        return None if unsure else agreed.pop()
    marks = [entry for entry in entries if _is_flat(entry) and entry.name.rpartition(".")[2] in _MARKS]
    if marks:
        starts = [entry.sizes[0] for entry in marks if entry.name.endswith("ptr")]
        return starts[0] - 1 if len(starts) == 1 else None
    arrays = [entry for entry in entries if entry.sizes]
    if len(arrays) == 1 and _is_flat(arrays[0]) and not any([_is_list(part) for _, part in parts(batch)]):
        return None  # a vector without company may be a single row
    return _common(batch, constants)


def matching(names: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Return names that are `wanted`, or else end with it, such as `anchor_input_ids`, but not `decoder_input_ids`.

    Only the part of a name after its last dot is compared.
    """
    last = {name: name.rpartition(".")[2] for name in names}
    same = tuple(name for name, word in last.items() if word == wanted)
    alike = (name for name, word in last.items() if word.endswith("_" + wanted) and not word.startswith("decoder_"))
    return same or tuple(alike)


def _holds_several(batch: Any) -> bool:
    every = [batch, *(part for _, part in parts(batch))]
    lists = [[[entry.name for entry in leaves(element) or []] for element in part] for part in every if _is_list(part)]
    return any(sum([bool(matching(names, "input_ids")) for names in elements]) > 1 for elements in lists)


def _is_flat(entry: Leaf) -> bool:
    return entry.whole and len(entry.sizes) == 1


def _is_packed_row(entries: Sequence[Leaf], guides: Sequence[Leaf]) -> bool:
    """Return True if sequences are packed into a single row, and another tensor holds their ends."""
    names = {entry.name.rpartition(".")[2] for entry in entries}
    return all([entry.rows == 1 for entry in guides]) and not names.isdisjoint(_ENDS)


def _have_time_first(entries: Sequence[Leaf], guides: Sequence[Leaf]) -> bool:
    """Return True if the batch has labels for the second dimension of the token ids, and none for the first."""
    vectors = {entry.rows for entry in entries if _is_flat(entry) and "position" not in entry.name}
    return (
        not vectors.isdisjoint([entry.sizes[1] for entry in guides if entry.sizes[1:]])
        and guides[0].rows not in vectors
    )


def _are_sequences(entries: Sequence[Leaf]) -> bool:
    """Return True if all tensors share their first two sizes, which differ: either dimension may be time."""
    both = {entry.sizes[:2] for entry in entries}
    dimensions = {len(entry.sizes) for entry in entries}
    return len(both) == 1 and len({*both.pop()}) > 1 and dimensions <= {2, 3}


def _common(batch: Any, constants: Collection[int]) -> int | None:
    """Return the size that the first dimension has in more than half of the parts, or None."""
    if is_array(batch) or is_packed(batch):
        return (leaves(batch) or [leaf("", batch)])[0].rows
    inside = [part for _, part in parts(batch) if id(part) not in constants and leaves(part)]
    tensors = [leaf("", part) for part in inside if is_array(part)]
    structures = [part for part in inside if not is_array(part)]
    if _is_list(batch) and len(batch) == len(inside) and not _are_columns(batch, inside):
        return None
    if _are_images_and_targets(inside):
        return len(inside[0])
    lists = [part for part in structures if _is_list(part)]
    if len(lists) > 1 and len({*map(_form, lists)}) == 1:
        return None  # a batch of each of several loaders
    votes: list[int | None] = [entry.rows for entry in tensors if entry.rows is not None]
    confirmed = {*votes, *[len(part) for _, part in parts(batch) if _is_list(part) and isinstance(part[0], _PLAIN)]}
    for part in structures:
        agreed = {entry.rows for entry in leaves(part) or []}
        possible = [len(part), *(agreed if len(agreed) == 1 else ())] if _is_list(part) else []
        votes.append(next((number for number in possible if number in confirmed), None) or _common(part, constants))
    return _most(votes, tensors)


def _are_columns(batch: Sequence[Any], inside: Sequence[Any]) -> bool:
    """Return True if the elements of a list are the columns of a batch, and not samples or whole batches."""
    forms = {*map(_form, inside)}
    if not all(map(is_array, inside)):
        return any(map(is_array, inside)) or (isinstance(batch, tuple) and len(forms) > 1)
    alike = len(inside) > 1 and len(forms) == 1
    sizes = [leaf("", element).sizes for element in inside]
    if alike and len({shape[:1] for shape in sizes}) > 1:
        return False
    return not alike or isinstance(batch, tuple) or (len(inside) <= _FEW and len(sizes[0]) > 1)


def _are_images_and_targets(inside: Sequence[Any]) -> bool:
    """Recognize object detection: a list of images, and a list of targets of equal length."""
    if len(inside) != 2 or not all(map(_is_list, inside)):  # noqa: PLR2004
        return False
    images, targets = inside
    return len(images) == len(targets) and all([isinstance(target, Mapping) for target in targets])


def _most(votes: Sequence[int | None], tensors: Sequence[Leaf]) -> int | None:
    """Return the size of a majority. None: there is none, the data may be in the minority, or it may be a length."""
    size, count = Counter(votes).most_common(1)[0] if votes else (None, 0)
    if size is None or 2 * count <= len(votes):
        return None
    data = [entry for entry in tensors if len(entry.sizes) > 1 or not entry.whole] or tensors
    if {size, *[entry.rows for entry in data if entry.sizes]} != {size}:
        return None
    winners = [entry for entry in tensors if entry.rows == size]
    for other in {*votes} - {size, None}:
        if all([entry.sizes[1:2] == (other,) for entry in winners]):
            return None
    return size


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields") and len(value) > 0


def _form(element: Any) -> object:
    """Return what samples of a batch share: dimensions and dtype of a tensor, names of a mapping, forms in a list."""
    if is_array(element):
        return len(leaf("", element).sizes), str(element.dtype)
    if _is_list(element):
        return tuple(map(_form, element))
    return tuple(map(str, element)) if isinstance(element, Mapping) else type(element)
