"""Amounts of batches in many forms, with the truth written beside each form: none is wrong, few are unknown."""

import numpy as np
import torch
from rows import each_row
from torch.nn.utils.rnn import pack_sequence

from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.batches.tensors import digest


def t(*sizes):
    return torch.zeros(*sizes)


def i(*sizes):
    return torch.zeros(*sizes, dtype=torch.long)


def packed(*lengths):
    return pack_sequence([t(length, 2) for length in lengths])


W16, W20 = t(16), t(20)
"""Constants: the same objects in each batch."""

FORMS = {  # name: (makes a batch of its step, true number of samples)
    "names": (lambda _: {"x": t(8, 16), "y": i(8)}, 8),
    "mean and deviation": (lambda _: {"x": t(8, 16), "mean": W16, "std": W16.view_as(W16)}, 8),
    "means of one object": (lambda _: {"x": t(8, 16), "mean": W16, "std": W16}, 8),
    "anchors": (lambda _: {"x": t(8, 16), "anchors": W20, "scales": W20, "grid": W20}, 8),
    "fresh anchors": (lambda _: {"x": t(8, 16), "anchors": t(20), "scales": t(20), "grid": t(20)}, 8),
    "anchors in a table": (lambda _: {"x": t(8, 16), "anchors": t(20, 4), "scales": t(20, 2), "grid": t(20)}, 8),
    "fresh weights": (lambda _: (t(16, 4), t(4), t(4)), 16),
    "weights and vectors": (lambda _: (i(8), t(100), t(100)), 8),
    "a fresh table": (lambda _: {"x": t(8, 16), "y": i(8), "table": t(100, 16)}, 8),
    "time-major": (lambda _: (t(50, 4, 7), i(4)), 4),
    "time-major token ids with labels": (lambda _: {"input_ids": i(16, 4), "labels": i(4)}, 4),
    "token ids with positions": (lambda _: {"input_ids": i(4, 16), "position_ids": i(16)}, 4),
    "token ids with classes": (lambda _: {"input_ids": i(4, 16), "labels": i(4)}, 4),
    "a single row": (lambda _: t(16), 1),
    "a single row in a list": (lambda _: [t(16)], 1),
    "a single row with its label": (lambda _: (t(16), torch.tensor(1)), 1),
    "a single row by name": (lambda _: {"x": t(16), "y": 1}, 1),
    "packed sequences": (lambda step: (packed(5, 3, 1 + step), i(3)), 3),
    "varying rows": (lambda step: {"x": t(8 - step, 16), "mean": W16, "std": W16}, None),
    "ratings": (lambda _: [i(16), i(16), t(16)], 16),
}

UNKNOWN = {
    "mean and deviation",
    "fresh anchors",
    "anchors in a table",
    "fresh weights",
    "weights and vectors",
    "a fresh table",
    "time-major",
    "time-major token ids with labels",
    *[name for name in FORMS if name.startswith("a single row")],
}
"""Forms that don't show their number of samples."""


def amounts(make, count=3):
    """The true and the read samples of batches, one after the other. A loop keeps no batch."""
    reader = BatchReader()
    return [reader.read(make(step)).samples for step in range(count)]


def test_no_form_has_a_wrong_number_of_samples():
    read = {name: amounts(make) for name, (make, _) in FORMS.items()}
    truth = {name: [8, 7, 6] if true is None else [true] * 3 for name, (_, true) in FORMS.items()}
    wrong = [name for name in FORMS if not all(a in {None, b} for a, b in zip(read[name], truth[name], strict=True))]
    assert wrong == []
    assert {name for name in FORMS if read[name][1:] == [None, None]} == UNKNOWN
    assert {name for name in FORMS if read[name][1:] != truth[name][1:]} == UNKNOWN


def test_a_tensor_that_was_written_is_no_constant():
    x, mean = t(8, 16), t(16)
    reader = BatchReader()
    read = [reader.read({"x": x.add_(1), "mean": mean.add_(1), "std": W16}).samples for _ in range(3)]
    assert read == [None] * 3  # the mean may be of this batch, and 16 then the number of samples


def test_a_batch_that_never_changes_has_no_constants():
    batch = {"x": t(8, 16), "mean": W16, "std": W16}
    assert amounts(lambda _: batch) == [None] * 3


def test_constants_on_a_device_are_not_compared_by_value():
    mean = torch.zeros(16, device="meta")
    assert amounts(lambda _: {"x": torch.zeros(8, 16, device="meta"), "mean": mean, "std": mean})[1:] == [8, 8]


def shape_of(**tensors):
    return BatchReader().read({"x": t(8, 16), **tensors}).shape


@each_row("name", ["cu_seqlens", "image_grid_thw", "position_ids", "lengths", "image_sizes"])
def test_values_that_say_how_much_work_a_batch_is_are_in_its_shape(name):
    reader = BatchReader()
    for make in (torch.tensor, np.array):
        batches = [{"x": t(8, 16), name: make(values)} for values in ([[0, 3]], [[1, 2]], [[0, 3]])]
        first, second, third = [reader.read(batch).shape for batch in batches]
        assert first == third != second
        assert [reader.read(batch).shape for batch in batches] == [first, second, third]  # from memory


def test_values_of_targets_tokens_and_devices_are_not_in_a_shape():
    unread = {
        "labels": torch.arange(8),
        "input_ids": torch.arange(16).view(8, 2),
        "attention_mask": torch.arange(16).view(8, 2),
        "target": torch.arange(8),
        "lengths": torch.ones(8),
        "seq_lens": torch.arange(8 * 64),
    }
    for name, values in unread.items():
        assert shape_of(**{name: values}) == shape_of(**{name: values.flip(0) + 1})
    nowhere = torch.zeros(8, dtype=torch.long, device="meta")
    assert dict(shape_of(lengths=nowhere))["lengths.values"] == (0,)


def test_reading_values_leaves_a_tensor_as_it_is():
    lengths = torch.arange(4)
    digest(lengths)
    lengths.resize_(5)  # refused once numpy shares the memory
    assert digest(torch.eye(2).to_sparse().long()) == 0
