"""How much is in a batch, whatever its form."""

from collections import UserDict, defaultdict

import pytest
import torch
from rows import each_row
from torch.utils._python_dispatch import TorchDispatchMode

from perf_callbacks.kernel.batches.reader import BatchReader
from perf_callbacks.kernel.batches.tensors import is_sized, leaf

IDS = torch.ones(4, 8, dtype=torch.long)
MASK = (torch.arange(8) < torch.tensor([[8], [5], [3], [1]])).long()
ROWS = torch.ones(4, 3)


@each_row(
    ("batch", "expected"),
    [
        pytest.param({"input_ids": IDS}, (4, 32, None), id="token ids"),
        pytest.param({"input_ids": IDS, "attention_mask": MASK}, (4, 32, 17), id="token ids and mask"),
        pytest.param({"input_ids": IDS, "attention_mask": MASK.bool()}, (4, 32, 17), id="mask of booleans"),
        pytest.param(UserDict({"input_ids": IDS, "attention_mask": MASK}), (4, 32, 17), id="any mapping"),
        pytest.param({"labels": torch.ones(2), "input_ids": IDS}, (4, 32, None), id="rows are those of the token ids"),
        pytest.param({"idx": torch.tensor(1), "x": ROWS}, (4, None, None), id="a number has no rows"),
        pytest.param({"attention_mask": MASK, "x": ROWS}, (4, None, None), id="mask without token ids"),
        pytest.param(
            {
                f"{name}_{part}": value
                for name in ("anchor", "positive")
                for part, value in {"input_ids": IDS, "attention_mask": MASK}.items()
            },
            (4, 64, 34),
            id="sentence pairs",
        ),
        pytest.param({"prompt_input_ids": IDS, "chosen_input_ids": IDS[:, :2]}, (4, 40, None), id="preference pairs"),
        pytest.param(
            {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS, "decoder_attention_mask": MASK},
            (4, 32, 17),
            id="encoder and decoder",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": MASK[:, None, None]}, (4, 32, None), id="mask of four dimensions"
        ),
        pytest.param({"input_ids": IDS, "attention_mask": MASK[:, :5]}, (4, 32, None), id="mask that does not match"),
        pytest.param((ROWS, torch.ones(4)), (4, None, None), id="tuple"),
        pytest.param([ROWS, torch.ones(4)], (4, None, None), id="list"),
        pytest.param(ROWS, (4, None, None), id="one tensor"),
        pytest.param({"image": {"pixels": ROWS}, "n": 1}, (4, None, None), id="nested"),
        pytest.param({"text": {"input_ids": IDS, "attention_mask": MASK}}, (4, 32, 17), id="nested token ids"),
        pytest.param(({"input_ids": IDS, "attention_mask": MASK}, ROWS), (4, 32, 17), id="token ids in a tuple"),
        pytest.param({"text": {"input_ids": IDS, "decoder_input_ids": IDS[:, :2]}}, (4, 32, None), id="nested decoder"),
        pytest.param([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}], (3, None, None), id="rows that are mappings"),
        pytest.param(["a", "b"], (2, None, None), id="rows that are strings"),
        pytest.param({"text": ["a", "b"]}, (None, None, None), id="no tensor"),
        pytest.param({}, (None, None, None), id="nothing"),
        pytest.param([], (None, None, None), id="no rows"),
        pytest.param(None, (None, None, None), id="none"),
    ],
)
def test_a_batch_is_counted_in_rows_tokens_and_tokens_that_the_mask_keeps(batch, expected):
    reader = BatchReader()
    for _ in range(2):  # the second time from memory
        samples, tokens, useful_tokens, _ = reader.read(batch)
        assert (samples, tokens, None if useful_tokens is None else int(useful_tokens)) == expected


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)


@pytest.mark.parametrize("batch", [ROWS, [ROWS], {"x": ROWS}, {"input_ids": IDS}], ids=["tensor", "list", "x", "ids"])
def test_a_batch_without_masks_is_read_without_any_operation(batch):
    with Operations():
        BatchReader().read(batch)


def test_what_the_mask_keeps_is_counted_on_the_host_and_left_on_a_device():
    usual = {"input_ids": IDS, "attention_mask": MASK}
    assert type(BatchReader().read(usual).useful_tokens) is int
    kept = BatchReader().read({name: tensor.to("meta") for name, tensor in usual.items()}).useful_tokens
    assert isinstance(kept, torch.Tensor)
    assert (kept.shape, kept.device.type) == ((), "meta")


def text(length, labels=None):
    return {"input_ids": torch.ones(2, length), "labels": torch.ones(2, length if labels is None else labels)}


@pytest.mark.parametrize("form", [dict, lambda batch: tuple(batch.values())], ids=["names", "places"])
def test_the_shape_of_each_tensor_is_read_in_every_batch(form):
    reader = BatchReader()
    for place in range(1000):
        length, labels = 3 + place % 7, 8 if place < 900 else 5 + place % 3
        assert [sizes for _, sizes in reader.read(form(text(length, labels))).shape] == [(2, length), (2, labels)]


def test_values_are_read_of_names_that_tell_a_size():
    sized = (
        "cu_seqlens", "cu_seqlens_q", "kv_len", "input_lengths", "max_length_q", "image_grid_thw", "spatial_shapes",
        "position_ids", "inputs.offset", "batch_size", "token_count", "[0].sizes",
    )  # fmt: skip
    others = ("country", "account_id", "discount", "calendar", "counter_id", "valence", "gridlock", "labels", "[0]")
    numbers = torch.ones(4, dtype=torch.long)
    assert [name for name in (*sized, *others) if is_sized(leaf(name, numbers))] == [*sized]


def test_like_batches_are_one_object():
    reader = BatchReader()
    batch = {"input_ids": IDS, "attention_mask": torch.ones(4, 8, dtype=torch.long)}
    assert len({id(reader.read(batch)) for _ in range(200)}) == 1


def test_batches_of_several_forms_are_told_apart():
    reader = BatchReader()
    forms = [text(8), (torch.ones(2, 8), torch.ones(2)), {"x": torch.ones(2, 8)}, torch.ones(2, 8), [torch.ones(2, 8)]]
    first = [reader.read(batch) for batch in forms]
    for _ in range(200):
        assert [reader.read(batch) for batch in forms] == first


def test_tensors_of_other_names_are_another_batch():
    reader = BatchReader()
    masked = {"input_ids": IDS, "attention_mask": torch.ones(4, 8, dtype=torch.long), "labels": IDS}
    placed = {"input_ids": IDS, "position_ids": IDS, "labels": IDS}
    for _ in range(100):
        assert [reader.read(batch).useful_tokens for batch in (masked, placed)] == [32, None]


def test_a_batch_that_makes_what_it_lacks_is_left_as_it_is():
    reader = BatchReader()
    for _ in range(100):
        reader.read(defaultdict(list, x=torch.ones(2, 8)))
    batch = defaultdict(list, y=torch.ones(2, 8))
    assert dict(reader.read(batch).shape) == {"y": (2, 8)}
    assert [*batch] == ["y"]


def test_no_tensor_is_read_for_its_shape():
    nowhere = {
        "input_ids": torch.ones(4, 8, device="meta"),
        "attention_mask": torch.ones(4, 8, device="meta", dtype=torch.bool),
    }
    batch = BatchReader().read(nowhere)
    assert (batch.samples, batch.tokens, batch.useful_tokens.device.type) == (4, 32, "meta")


def test_each_mask_is_counted_anew():
    reader = BatchReader()
    masks = [torch.zeros(4, 8, dtype=torch.bool), MASK, torch.ones(4, 8, dtype=torch.uint8)]
    kept = [int(reader.read({"input_ids": IDS, "attention_mask": mask}).useful_tokens) for mask in masks]
    assert kept == [0, 17, 32]


def test_a_mask_of_segments_keeps_what_is_in_one():
    segments = torch.tensor([[1, 1, 2, 2, 3, 0]])
    read = BatchReader().read({"input_ids": torch.ones(1, 6), "attention_mask": segments})
    assert (read.tokens, int(read.useful_tokens)) == (6, 5)


def test_a_mask_that_is_there_to_be_added_says_nothing():
    added = torch.tensor([[0.0, -1e9]])
    assert BatchReader().read({"input_ids": torch.ones(1, 2), "attention_mask": added}).useful_tokens is None


def test_shapes_are_told_apart_by_name_and_size():
    reader = BatchReader()
    wide = reader.read({"input_ids": torch.ones(4, 16)})
    assert (reader.read({"input_ids": IDS}).tokens, wide.tokens, reader.read({"x": IDS}).tokens) == (32, 64, None)
    assert wide.shape == (("input_ids", (4, 16)),)


def test_the_shapes_seen_are_bounded_and_the_latest_are_kept():
    reader = BatchReader()
    for length in range(2000):
        assert reader.read({"input_ids": torch.empty(1, length, device="meta")}).tokens == length
    assert len(reader.seen) == 1024
    assert (("input_ids", (1, 1999)),) in reader.seen
