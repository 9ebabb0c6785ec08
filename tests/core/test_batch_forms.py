"""Batches of every common form are read; amounts that the tensors don't agree on are unknown."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from perf_callbacks.core.batch_tensors import MOST_PARTS
from perf_callbacks.core.batches import BatchReader, Lookup
from perf_callbacks.core.unknown_reasons import Unknowns

IDS = torch.ones(4, 8, dtype=torch.long)
X, Y = torch.ones(4, 3), torch.ones(4)


def t(*sizes):
    return torch.ones(*sizes)


def read(batch, **options):
    reader = BatchReader()
    for name, value in options.items():
        setattr(reader, name, value)
    first = reader.read(batch)
    second = reader.read(batch)  # from memory
    assert (first.samples, first.tokens, first.shape) == (second.samples, second.tokens, second.shape)
    return first


@dataclass
class Fields:
    input_ids: object
    labels: object
    kind: str = "train"


@dataclass(slots=True)
class Slots:
    input_ids: object
    labels: object


@attrs.define
class Attrs:
    input_ids: object
    labels: object


class Plain:
    def __init__(self, input_ids, labels):
        self.input_ids, self.labels, self.whole = input_ids, labels, self


Named = namedtuple("Named", "input_ids labels")  # noqa: PYI024 as people write it


class Storage(dict):
    """As torch_geometric keeps what a graph has."""


class Data:
    """As torch_geometric's graphs: they are called to go through their parts."""

    def __init__(self, **parts):
        self.__dict__["_store"] = Storage(parts)

    def keys(self):
        return list(self._store)

    def __call__(self, *names):
        return iter(self._store)


@pytest.mark.parametrize("form", [Fields, Slots, Attrs, Plain, Named, SimpleNamespace])
def test_an_object_is_read_by_its_attributes(form):
    batch = read(form(input_ids=IDS, labels=IDS))
    assert (batch.samples, batch.tokens) == (4, 32)
    assert batch.shape == (("input_ids", (4, 8)), ("labels", (4, 8)))


@pytest.mark.parametrize("kind", [BatchEncoding, dict])
def test_arrays_of_numpy_are_read_as_tensors_are(kind):
    batch = read(kind({"input_ids": IDS.numpy(), "attention_mask": np.array([[1, 1, 0, 0, 0, 0, 0, 0]] * 4)}))
    assert (batch.samples, batch.tokens, int(batch.useful_tokens)) == (4, 32, 8)
    assert batch.shape == (("input_ids", (4, 8)), ("attention_mask", (4, 8)))


def test_a_mask_of_numbers_says_nothing_in_numpy_either():
    assert read({"input_ids": IDS.numpy(), "attention_mask": np.ones((4, 8))}).useful_tokens is None


@pytest.mark.parametrize(
    ("batch", "samples", "shape"),
    [
        (X.numpy(), 4, (("", (4, 3)),)),
        ((X.numpy(), Y.numpy()), 4, (("[0]", (4, 3)), ("[1]", (4,)))),
        (BaseModelOutput(last_hidden_state=X), 4, (("last_hidden_state", (4, 3)),)),
        ({"a": [X, {"y": Y}], "n": 3}, 4, (("a[0]", (4, 3)), ("a[1].y", (4,)))),
        ([Named(X, Y), Y], 4, (("[0].input_ids", (4, 3)), ("[0].labels", (4,)), ("[1]", (4,)))),
        ({"rows": ["a", "b"], "x": X}, 4, (("x", (4, 3)),)),
    ],
)
def test_shapes_are_read_from_whatever_holds_them(batch, samples, shape):
    found = read(batch)
    assert (found.samples, found.shape) == (samples, shape)


def test_batches_of_changing_sizes_have_shapes_of_their_own():
    reader = BatchReader()
    for make in (lambda x: Fields(x, x), lambda x: x.numpy(), lambda x: {"x": x.numpy()}, lambda x: [{"x": x}], Plain):
        shapes = {reader.read(make(x) if make is not Plain else Plain(x, x)).shape for x in (t(2, 3), t(5, 3))}
        assert len(shapes) == 2
        assert () not in shapes


@pytest.mark.parametrize(
    "batch",
    [object(), 7, (row for row in "ab"), {"rows": {"a", "b"}}, torch.nn.Linear(2, 2), [object()], len],
    ids=lambda batch: type(batch).__name__,
)
def test_what_can_not_be_read_is_unknown_and_named(batch):
    unknowns = Unknowns()
    assert BatchReader(unknowns).read(batch) == (None, None, None, ())
    assert unknowns.batch == type(batch).__name__


def test_a_batch_that_was_read_is_not_named():
    unknowns = Unknowns()
    reader = BatchReader(unknowns)
    reader.read(Fields(IDS, IDS))
    reader.read(None)
    assert unknowns.batch is None


def test_a_batch_of_too_many_parts_is_not_walked_to_its_end():
    many = [[X] for _ in range(MOST_PARTS + 1)]
    assert read(many) == (None, None, None, ())
    deep = X
    for _ in range(20):
        deep = {"x": deep}
    assert read(deep) == (None, None, None, ())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x], lambda x: {"x": x}], ids=["alone", "list", "dict"])
def test_nested_tensors_are_read_with_their_lengths(layout, form):
    reader = BatchReader()
    some, others, more = (
        reader.read(form(torch.nested.nested_tensor([t(length, 2) for length in lengths], layout=layout)))
        for lengths in ([3, 5], [4, 4], [3, 5, 1])
    )
    assert (some.samples, others.samples, more.samples) == (2, 2, 3)
    assert len({some.shape, others.shape, more.shape}) == 3
    ids = torch.nested.nested_tensor([t(3).long(), t(5).long()], layout=layout)
    found = reader.read({"input_ids": ids})
    assert (found.samples, found.tokens) == (2, 8)


def test_a_nested_tensor_on_a_device_is_not_waited_for():
    ids = torch.nested.nested_tensor_from_jagged(
        torch.ones(8, device="meta"), torch.zeros(3, dtype=torch.long, device="meta")
    )
    found = read({"input_ids": ids})
    assert (found.samples, found.tokens, found.shape) == (2, 8, ())


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_have_rows_and_steps(enforce_sorted):
    reader = BatchReader()
    packed = pack_sequence([t(5, 2), t(3, 2), t(1, 2)], enforce_sorted=enforce_sorted)
    found = reader.read((packed, torch.ones(3)))
    assert (found.samples, found.shape[0]) == (3, ("[0]", (9, 2)))
    other = reader.read((pack_sequence([t(5, 2), t(4, 2)], enforce_sorted=enforce_sorted), torch.ones(2)))
    assert (other.samples, other.shape[0]) == (2, ("[0]", (9, 2)))


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        pytest.param(([t(3, 8, 9), t(3, 7, 6)], [{"boxes": t(n, 4), "labels": t(n)} for n in (5, 2)]),
                     2, id="detection"),
        pytest.param((t(2, 3, 8, 8), [{"boxes": t(5, 4)}, {"boxes": t(1, 4)}]), 2, id="detection, images of one size"),
        pytest.param({"pixel_values": t(2, 3, 8, 8), "pixel_mask": t(2, 8, 8),
                      "labels": [{"boxes": t(n, 4), "class_labels": t(n), "image_id": t(1), "area": t(n), "size": t(2)}
                                 for n in (5, 5)]}, 2, id="DETR"),
        pytest.param(([t(3, 8, 9), t(3, 7, 6)], [{"boxes": t(5, 4)}, {"boxes": t(5, 4)}]), None, id="rows or columns"),
        pytest.param([{"x": t(16, 3), "y": t(16)}, {"x": t(16, 3)}], 16, id="default_collate of two mappings"),
        pytest.param([[t(16, 3), t(16)], [t(16, 3), t(16)]], 16, id="default_collate of two pairs"),
        pytest.param((t(50, 4, 7), t(4)), None, id="time-major"),
        pytest.param((t(50, 4, 7), t(50, 4, 7), t(4)), None, id="time-major, sequences in and out"),
        pytest.param((t(50, 4, 7), t(4), t(4)), 4, id="time-major, and most agree"),
        pytest.param((t(10), t(4, 3), t(4)), 4, id="weights of classes first"),
        pytest.param((t(10), t(4, 10), t(4, 10)), None, id="weights of classes, or rows in the second dimension"),
        pytest.param({"a": [t(8, 3), t(8)], "b": [t(16, 3), t(16)]}, None, id="a loader each"),
        pytest.param({"a": [t(8, 3), t(8, 3)], "b": [t(16, 3), t(16, 3), t(16)]}, None, id="a loader each, alike"),
        pytest.param({"a": t(8, 3), "b": t(16, 3)}, None, id="a loader each, a tensor each"),
        pytest.param({"labeled": {"x": t(8, 3), "y": t(8)}, "unlabeled": {"x": t(56, 3)}}, None, id="half supervised"),
        pytest.param({"inputs": {"x": t(4, 3), "weights": t(10)}, "y": t(4)}, None, id="half of the parts"),
        pytest.param({"batch": {"x": t(4, 3), "y": t(4), "weights": t(10)}}, 4, id="a batch in a batch"),
        pytest.param([{"x": t(3), "y": t(1)}, {"x": t(5), "y": t(1)}], None, id="rows that hold tensors"),
        pytest.param([t(5), t(7), t(3)], None, id="rows or columns of all lengths"),
        pytest.param({"pixel_values": t(900, 12), "image_grid_thw": t(3, 3), "input_ids": IDS, "labels": IDS}, 4,
                     id="image patches beside token ids"),
        pytest.param({"anchor_input_ids": t(4, 8), "positive_input_ids": t(4, 9), "label": t(4)}, 4, id="pairs"),
        pytest.param({"chosen_input_ids": t(4, 8), "rejected_input_ids": t(8, 9)}, None, id="ids that disagree"),
        pytest.param({"input_ids": t(50), "cu_seqlens": t(5), "labels": t(50)}, None, id="flattened token ids"),
        pytest.param((t(4, 3), torch.tensor(3)), 4, id="numbers don't vote"),
        pytest.param(Data(x=t(30, 3), edge_index=t(2, 90), y=t(6), batch=t(30), ptr=t(7)), 6, id="graphs"),
        pytest.param(Data(x=t(30, 3), edge_index=t(2, 90)), None, id="one graph"),
    ],
)  # fmt: skip
def test_samples_are_what_the_tensors_agree_on_or_unknown(batch, samples):
    assert read(batch).samples == samples
    assert read(batch).shape != ()


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        ({"a": [t(8, 3), t(8)], "b": [t(16, 3), t(16)]}, 24, None),
        ([t(8, 3), t(16, 3)], 24, None),
        ({"a": [t(8, 3), t(8)], "b": None}, 8, None),
        ({"a": {"input_ids": t(8, 5)}, "b": {"input_ids": t(2, 7)}}, 10, 54),
        ({"a": [t(8, 3), t(8)], "b": [t(50, 4), t(4)]}, None, None),
    ],
)
def test_samples_of_several_loaders_add_up(batch, samples, tokens):
    found = read(batch, several=True)
    assert (found.samples, found.tokens) == (samples, tokens)


def looked_up(reader, batches, *indices, rows=50):
    reader.note()
    for batch in batches:
        reader.read(batch)
    return reader.look_up(
        [Lookup(1, rows, one.data_ptr(), one.numel()) for one in indices] + [Lookup(2, 9, t(7).data_ptr(), 7)]
    )


def test_tokens_are_those_of_the_tensor_that_was_looked_up():
    reader, x, y = BatchReader(), IDS.clone(), IDS.clone()
    before = reader.read((x, y))
    assert before.tokens is None
    assert looked_up(reader, [(y, x)], x)
    assert reader.with_tokens(before).tokens == reader.read((x, y)).tokens == 32
    assert reader.read((IDS, IDS[:, :3])).tokens == 12  # the second one, of other batches too
    assert reader.read([IDS, IDS, IDS]).tokens is None
    assert reader.read({"x": IDS, "y": IDS}).tokens is None


def test_a_tensor_in_larger_memory_is_found_where_it_begins():
    reader, memory = BatchReader(), torch.ones(4, 9, dtype=torch.long)
    assert looked_up(reader, [(memory[:, :-1], memory[:, 1:4])], memory[:, 1:4])
    assert reader.read((IDS, IDS[:, :2])).tokens == 8


def test_a_tensor_that_was_copied_since_is_found_by_its_size():
    reader = BatchReader()
    assert looked_up(reader, [(IDS, IDS[:, :3], X)], IDS[:, :3].clone())
    assert reader.read((IDS, IDS[:, :2], X)).tokens == 8


def test_of_copies_of_several_as_large_it_is_told_how_many_tokens_there_are():
    one, both = BatchReader(), BatchReader()
    assert looked_up(one, [(IDS, IDS)], IDS.clone())
    assert one.read((IDS, IDS)).tokens == 32
    copies = IDS.clone(), IDS.clone()
    assert looked_up(both, [(IDS, IDS)], *copies)
    assert both.read((IDS, IDS)).tokens == 64


def test_where_it_can_not_be_told_tokens_stay_unknown():
    reader, copies = BatchReader(), [IDS.clone() for _ in range(3)]
    assert not looked_up(reader, [(IDS.clone(), IDS.clone())], *copies)
    assert not looked_up(reader, [(IDS, IDS[:, :3])], IDS.clone(), IDS[:, :3].clone())
    assert not looked_up(reader, [(X, Y.long())], Y.long())  # one a sample: labels
    assert not looked_up(reader, [(X, X)], IDS.clone())
    assert not looked_up(reader, [object(), None], IDS.clone())


def test_the_largest_vocabulary_is_that_of_tokens():
    reader, tokens, segments = BatchReader(), IDS.clone(), torch.zeros(4, 8, dtype=torch.long)
    reader.note()
    reader.read((segments, tokens))
    assert reader.look_up([Lookup(1, 2, segments.data_ptr(), 32), Lookup(2, 50, tokens.data_ptr(), 32)])
    assert reader.read((segments[:, :2], tokens[:, :2])).tokens == 8


def test_batches_with_token_ids_by_name_have_said_it():
    reader, other = BatchReader(), IDS.clone()
    assert not looked_up(reader, [{"input_ids": IDS, "other": other}], other)
    assert reader.read({"input_ids": IDS[:, :2], "other": other}).tokens == 8
