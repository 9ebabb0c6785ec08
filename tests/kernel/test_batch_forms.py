"""Batches of every common form are read; amounts that the tensors don't agree on are unknown."""

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from rows import each_row
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from perf_callbacks.kernel.batches.reader import BatchReader, Lookup
from perf_callbacks.kernel.batches.tensors import MOST_PARTS

IDS = torch.ones(4, 8, dtype=torch.long)
X, Y = torch.ones(4, 3), torch.ones(4)


def t(*sizes):
    return torch.ones(*sizes)


def i(*sizes):
    return torch.ones(*sizes, dtype=torch.long)


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
        self.__dict__["contents"] = Storage(parts)

    def keys(self):
        return list(self.contents)

    def __call__(self, *names):
        return iter(self.contents)


@each_row("form", [Fields, Slots, Attrs, Plain, Named, SimpleNamespace])
def test_an_object_is_read_by_its_attributes(form):
    batch = read(form(input_ids=IDS, labels=IDS))
    assert (batch.samples, batch.tokens) == (4, 32)
    assert batch.shape == (("input_ids", (4, 8)), ("labels", (4, 8)))


@each_row("kind", [BatchEncoding, dict])
def test_arrays_of_numpy_are_read_as_tensors_are(kind):
    batch = read(kind({"input_ids": IDS.numpy(), "attention_mask": np.array([[1, 1, 0, 0, 0, 0, 0, 0]] * 4)}))
    assert (batch.samples, batch.tokens, int(batch.useful_tokens)) == (4, 32, 8)
    assert batch.shape == (("input_ids", (4, 8)), ("attention_mask", (4, 8)))
    assert read(kind({"input_ids": IDS.numpy(), "attention_mask": np.ones((4, 8))})).useful_tokens is None


@each_row(
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
def test_shapes_are_read_from_any_container(batch, samples, shape):
    found = read(batch)
    assert (found.samples, found.shape) == (samples, shape)


@each_row("make", [lambda x: Fields(x, x), torch.Tensor.numpy, lambda x: [{"x": x}], lambda x: Plain(x, x)])
def test_batches_of_changing_sizes_have_shapes_of_their_own(make):
    reader = BatchReader()
    assert len({reader.read(make(x)).shape for x in (t(2, 3), t(5, 3))} - {()}) == 2


@each_row("batch", [object(), 7, (row for row in "ab"), {"rows": {"a", "b"}}, torch.nn.Linear(2, 2), [object()], len])
def test_a_batch_that_can_not_be_read_is_unknown_and_named(batch):
    reader = BatchReader()
    reader.read(Fields(IDS, IDS))
    reader.read(None)
    assert reader.unreadable is None
    assert reader.read(batch) == (None, None, None, ())
    assert reader.unreadable == type(batch).__name__


def test_a_batch_of_too_many_parts_is_not_walked_to_its_end():
    many = [[X] for _ in range(MOST_PARTS + 1)]
    assert read(many) == (None, None, None, ())
    deep = X
    for _ in range(20):
        deep = {"x": deep}
    assert read(deep) == (None, None, None, ())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@each_row("layout", [torch.jagged, torch.strided])
@each_row("form", [lambda x: x, lambda x: [x], lambda x: {"x": x}])
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
    elsewhere = read({"input_ids": torch.nested.nested_tensor_from_jagged(t(8).to("meta"), i(3).to("meta"))})
    assert (elsewhere.samples, elsewhere.tokens, elsewhere.shape) == (2, 8, ()), "a device is not waited for"


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_have_rows_and_steps(enforce_sorted):
    reader = BatchReader()
    packed = pack_sequence([t(5, 2), t(3, 2), t(1, 2)], enforce_sorted=enforce_sorted)
    found = reader.read((packed, torch.ones(3)))
    assert (found.samples, found.shape[0]) == (3, ("[0]", (9, 2)))
    other = reader.read((pack_sequence([t(5, 2), t(4, 2)], enforce_sorted=enforce_sorted), torch.ones(2)))
    assert (other.samples, other.shape[0]) == (2, ("[0]", (9, 2)))
    third = reader.read((pack_sequence([t(6, 2), t(3, 2)], enforce_sorted=enforce_sorted), torch.ones(2)))
    assert third.shape[0] == other.shape[0]
    assert third.shape != other.shape, "other lengths are other work"


@each_row(
    ("batch", "samples"),
    [
        pytest.param(([t(3, 8, 9), t(3, 7, 6)], [{"boxes": t(n, 4), "labels": t(n)} for n in (5, 2)]),
                     2, id="detection"),
        pytest.param([(t(3, 8, 9), {"boxes": t(3, 4), "labels": t(3)})], None, id="detection, one pair, three boxes"),
        pytest.param({"pixel_values": t(2, 3, 8, 8), "pixel_mask": t(2, 8, 8),
                      "labels": [{"boxes": t(n, 4), "class_labels": t(n), "image_id": t(1), "area": t(n), "size": t(2)}
                                 for n in (5, 5)]}, 2, id="DETR"),
        pytest.param([[t(16, 3), t(16)], [t(16, 3), t(16)]], None, id="two pairs: paired, or of two loaders"),
        pytest.param((t(50, 4, 7), t(4)), None, id="time-major"),
        pytest.param((t(50, 4, 7), t(50, 4, 7), t(4)), None, id="time-major, sequences in and out"),
        pytest.param((t(10), t(4, 3), t(4)), 4, id="weights of classes first"),
        pytest.param((t(10), t(4, 10), t(4, 10)), None, id="weights of classes, or rows in the second dimension"),
        pytest.param({"a": [t(8, 3), t(8)], "b": [t(16, 3), t(16)]}, None, id="a loader each"),
        pytest.param({"a": t(8, 3), "b": t(16, 3)}, None, id="a loader each, a tensor each"),
        pytest.param({"labeled": {"x": t(8, 3), "y": t(8)}, "unlabeled": {"x": t(56, 3)}}, None, id="half supervised"),
        pytest.param({"inputs": {"x": t(4, 3), "weights": t(10)}, "y": t(4)}, None, id="half of the parts"),
        pytest.param({"batch": {"x": t(4, 3), "y": t(4), "weights": t(10)}}, 4, id="a batch in a batch"),
        pytest.param({"z": i(30), "pos": t(30, 3), "batch": i(30), "y": t(4)}, None, id="atoms of molecules"),
        pytest.param({"coord": t(99, 3), "feat": t(99, 6), "segment": i(99), "offset": i(4)}, None, id="point clouds"),
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
def test_samples_are_agreed_on_by_tensors_or_unknown(batch, samples):
    assert read(batch).samples == samples
    assert read(batch).shape != ()


def many(count, make):
    return [make(place) for place in range(count)]


TEXT = {"input_ids": i(4, 8), "attention_mask": i(4, 8)}


@each_row(
    ("batch", "samples"),
    [
        # Samples that nobody put together, or several batches: lists of mappings, tuples, objects.
        pytest.param(many(8, lambda _: {"array": t(160)}), None, id="waves"),
        pytest.param(many(8, lambda n: {"array": t(160 + n), "sampling_rate": 16000}), None, id="waves of all lengths"),
        pytest.param(many(8, lambda _: {"image": t(3, 32, 32)}), None, id="images"),
        pytest.param(many(8, lambda _: {"image": t(1, 28, 28), "label": 3}), None, id="images with labels"),
        pytest.param(many(4, lambda _: (t(160), 16000, "a")), None, id="wave, rate, text"),
        pytest.param(many(3, lambda _: (torch.tensor(0.5), torch.tensor(1.0))), None, id="a grid of numbers"),
        pytest.param(many(3, lambda n: (t(16 + n, 3), i(2))), None, id="sequences to sequences"),
        pytest.param(many(2, lambda n: {"input_ids": i(7 + n), "labels": i(7 + n)}), None, id="texts"),
        pytest.param(many(2, lambda n: {"image": t(3, 32, 32), "boxes": t(n, 4), "height": 9}), None, id="Detectron2"),
        pytest.param(many(5, lambda n: Data(x=t(9 + n, 3), edge_index=t(2, 30), y=t(1))), None, id="a list of graphs"),
        pytest.param(many(2, lambda _: Data(x=t(9, 3), batch=t(9), ptr=t(4))), None, id="a list of batches of graphs"),
        pytest.param(many(3, lambda _: Fields(i(9), i(9))), None, id="samples that are objects"),
        # Tensors in lists: columns, or samples.
        pytest.param(many(4, lambda _: i(8)), None, id="four texts, or four columns"),
        pytest.param(many(4, lambda _: t(16, 3)), None, id="four tables, or four columns"),
        pytest.param([i(16), i(16), t(16)], 16, id="users, items, ratings"),
        pytest.param([t(16, 3), t(16, 3)], 16, id="inputs and targets"),
        pytest.param([t(16, 3, 32, 32), t(16, 3, 32, 32)], 16, id="two views"),
        pytest.param([t(16, 3)], 16, id="TensorDataset of one"),
        pytest.param(many(8, lambda _: t(3, 32, 32)), None, id="eight images, or eight columns"),
        pytest.param([t(5, 3), t(5, 3), t(7, 3)], None, id="clouds of points, most as large"),
        pytest.param([t(8, 3), t(16, 3)], None, id="two loaders, or two samples"),
        # Columns of samples.
        pytest.param({"audio": many(8, lambda _: t(160))}, None, id="a column of waves"),
        pytest.param({"audio": many(8, lambda _: t(160)), "text": ["a"] * 8}, 8, id="waves and texts by column"),
        pytest.param({"audio": many(8, lambda _: t(160)), "labels": i(8)}, 8, id="a column of waves, and labels"),
        pytest.param({"pixel_values": many(8, lambda _: t(3, 32, 32)), "labels": i(8)}, 8, id="a column of images"),
        pytest.param((tuple(many(8, lambda _: t(3, 32, 32))), (3,) * 8), 8, id="zip(*batch)"),
        pytest.param((many(8, lambda _: t(3, 32, 32)), many(8, lambda _: t(32, 32))), None, id="zip, images and masks"),
        pytest.param(([TEXT, TEXT], t(4)), 4, id="sentence pairs as a list of columns"),
        # Batches in a batch: of several loaders, of several micro-batches, or in several roles.
        pytest.param([TEXT, TEXT], None, id="a list of micro-batches of texts"),
        pytest.param((TEXT, TEXT), None, id="two batches of texts, paired or not"),
        pytest.param({"query": TEXT, "passage": TEXT}, 4, id="queries and passages"),
        pytest.param([TEXT], 4, id="a batch in a list"),
        pytest.param(([t(8, 3), t(8)], [t(16, 3), t(16)]), None, id="zip of two loaders"),
        pytest.param(({"x": t(8, 3)}, {"y": t(8)}), 8, id="inputs and targets as mappings"),
        pytest.param([{"x": t(50, 4, 7), "y": t(4)}, {"x": t(50, 4, 7), "y": t(4)}], None, id="two time-major batches"),
        pytest.param(({"x": t(8, 3), "y": t(8)}, 0, 0), 8, id="a batch with its number"),
        pytest.param({"input_ids": i(1, 50), "labels": i(1, 50), "cu_seq_lens_q": i(5)}, None, id="packed"),
        pytest.param({"input_ids": i(2, 50), "position_ids": i(2, 50)}, 2, id="rows with positions"),
    ],
)  # fmt: skip
def test_lists_that_may_hold_samples_columns_or_batches_are_unknown(batch, samples):
    assert read(batch).samples == samples


@each_row(
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


@each_row(
    ("batch", "samples"),
    [
        ((i(35, 20), i(35, 20)), None),
        ((t(35, 20, 8), i(35, 20)), None),
        ((i(20, 20), i(20, 20)), 20),
        ((i(35, 20), i(35)), 35),
        ((t(4, 3, 8, 8),), 4),
        ({"input_ids": i(16, 4), "labels": i(16, 4)}, None),
        ({"input_ids": i(16, 4)}, None),
        ({"input_ids": i(4, 9), "labels": i(4)}, 4),
    ],
)
def test_sequences_alone_have_no_samples_where_time_may_come_first(batch, samples):
    assert read(batch, time_first=True).samples == samples


def looked_up(reader, batches, *indices, rows=50):
    reader.note()
    for batch in batches:
        reader.read(batch)
    return reader.look_up(
        [Lookup(1, rows, tensor.data_ptr(), tensor.numel()) for tensor in indices] + [Lookup(2, 9, t(7).data_ptr(), 7)]
    )


def test_tokens_are_of_the_tensor_that_was_looked_up():
    reader, x, y = BatchReader(), IDS.clone(), IDS.clone()
    before = reader.read((x, y))
    assert before.tokens is None
    assert looked_up(reader, [(y, x)], x)
    assert reader.with_tokens(before).tokens == reader.read((x, y)).tokens == 32
    assert reader.read((IDS, IDS[:, :3])).tokens == 12  # the second one, of other batches too
    assert reader.read([IDS, IDS, IDS]).tokens is None
    assert reader.read({"x": IDS, "y": IDS}).tokens is None


def test_a_tensor_in_larger_memory_or_copied_since_is_found():
    reader, memory = BatchReader(), i(4, 9)
    assert looked_up(reader, [(memory[:, :-1], memory[:, 1:4])], memory[:, 1:4])
    assert reader.read((IDS, IDS[:, :2])).tokens == 8
    reader = BatchReader()
    assert looked_up(reader, [(IDS, IDS[:, :3], X)], IDS[:, :3].clone())
    assert reader.read((IDS, IDS[:, :2], X)).tokens == 8
    reader, other = BatchReader(), IDS.clone()
    assert not looked_up(reader, [{"input_ids": IDS, "other": other}], other)
    assert reader.read({"input_ids": IDS[:, :2], "other": other}).tokens == 8, "token ids by name"


def test_copies_of_several_that_are_as_large_have_their_number_of_tokens():
    single, both = BatchReader(), BatchReader()
    assert looked_up(single, [(IDS, IDS)], IDS.clone())
    assert single.read((IDS, IDS)).tokens == 32
    copies = IDS.clone(), IDS.clone()
    assert looked_up(both, [(IDS, IDS)], *copies)
    assert both.read((IDS, IDS)).tokens == 64


def test_tokens_that_can_not_be_told_stay_unknown():
    reader, copies = BatchReader(), [IDS.clone() for _ in range(3)]
    assert not looked_up(reader, [(IDS.clone(), IDS.clone())], *copies)
    assert not looked_up(reader, [(IDS, IDS[:, :3])], IDS.clone(), IDS[:, :3].clone())
    assert not looked_up(reader, [(X, Y.long())], Y.long())  # one a sample: labels
    assert not looked_up(reader, [(X, X)], IDS.clone())
    assert not looked_up(reader, [object(), None], IDS.clone())


def learned(batch, *tables):
    """Tokens of a batch whose tensors were looked up in tables, each given by its number of rows."""
    reader = BatchReader()
    reader.note()
    reader.read(batch)
    reader.look_up([Lookup(rows, rows, indices.data_ptr(), indices.numel()) for rows, indices in tables])
    return reader.read(batch).tokens


def test_a_number_for_each_sample_is_no_token_however_large_its_table():
    users, items, labels, column = i(4), i(4, 8), i(4), i(4, 1)
    assert learned((users, items, labels), (1000, users), (50, items)) == 32
    assert learned((users, items.clone(), labels), (1000, users.clone()), (50, items)) == 32
    assert learned((t(4, 3, 8, 8), labels), (1000, labels)) is None
    assert learned((t(4, 3, 8, 8), column), (1000, column)) is None
    assert learned([users, labels], (1000, users)) is None


@pytest.mark.parametrize("clone", [lambda x: x, torch.clone], ids=["itself", "copied"])
def test_a_tensor_that_is_in_a_batch_twice_is_counted_once(clone):
    x = i(4, 8)
    assert learned((x, x), (50, clone(x))) == 32
    assert learned({"x": x, "labels": x, "y": i(4)}, (50, clone(x))) == 32


def test_sequences_of_two_lengths_are_ambiguous_unless_of_a_single_table():
    source, target, segments = i(4, 8), i(4, 6), i(4, 8)
    assert learned((source, target), (1000, source), (900, target)) is None
    assert learned((source, target), (1000, source.clone()), (900, target.clone())) is None
    assert learned((segments, source), (2, segments), (1000, source)) == 32, "the largest vocabulary"
    assert learned((source, target), (50, source), (50, target)) == 56, "a single table"


class Lazy(Mapping):
    """A batch that makes each value when it is asked for it, as data sets do that decode images."""

    def __init__(self):
        self.reads = []

    def __getitem__(self, name):
        self.reads.append(name)
        return {"pixels": t(4, 3), "attention_mask": i(4, 3), "input_ids": i(4, 3)}[name]

    def __iter__(self):
        return iter(("pixels", "attention_mask", "input_ids"))

    def __len__(self):
        return 3


def test_a_lazy_mapping_is_read_once():
    reader = BatchReader()
    for _ in range(3):
        batch = Lazy()
        assert reader.read(batch)[:3] == (4, 12, 12)
        assert batch.reads == [*batch]
