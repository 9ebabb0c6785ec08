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
        pytest.param(
            {
                f"{name}_{part}": value
                for name in ("anchor", "positive")
                for part, value in {"input_ids": IDS, "attention_mask": MASK}.items()
            },
            (4, 64, 34),
            id="sentence pairs",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": IDS, "decoder_attention_mask": MASK},
            (4, 32, 17),
            id="encoder and decoder",
        ),
        pytest.param(
            {"input_ids": IDS, "attention_mask": MASK[:, None, None]}, (4, 32, None), id="mask of four dimensions"
        ),
        pytest.param({"input_ids": IDS, "attention_mask": MASK[:, :5]}, (4, 32, None), id="mask that does not match"),
        pytest.param([ROWS, torch.ones(4)], (4, None, None), id="list"),
        pytest.param({"image": {"pixels": ROWS}, "n": 1}, (4, None, None), id="nested"),
        pytest.param(({"input_ids": IDS, "attention_mask": MASK}, ROWS), (4, 32, 17), id="token ids in a tuple"),
        pytest.param({"text": {"input_ids": IDS, "decoder_input_ids": IDS[:, :2]}}, (4, 32, None), id="nested decoder"),
        pytest.param([{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}], (3, None, None), id="rows that are mappings"),
        pytest.param(["a", "b"], (2, None, None), id="rows that are strings"),
        pytest.param({"text": ["a", "b"]}, (None, None, None), id="no tensor"),
        pytest.param({}, (None, None, None), id="nothing"),
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


def kept(mask, device="cpu"):
    """What a mask keeps of token ids of its size."""
    ids = torch.ones(mask.shape, device=device)
    return BatchReader().read({"input_ids": ids, "attention_mask": mask.to(device)}).useful_tokens


def test_tokens_that_a_mask_keeps_are_counted_on_the_host_and_left_on_a_device():
    assert type(kept(MASK)) is int
    on_device = kept(MASK, "meta")
    assert (on_device.shape, on_device.device.type) == ((), "meta")
    assert kept(torch.tensor([[1, 1, 2, 2, 3, 0]])) == 5, "of segments"
    assert kept(torch.tensor([[0.0, -1e9]])) is None, "to be added"
    reader, masks = BatchReader(), [torch.zeros(4, 8, dtype=torch.bool), MASK, torch.ones(4, 8, dtype=torch.uint8)]
    assert [reader.read({"input_ids": IDS, "attention_mask": mask}).useful_tokens for mask in masks] == [0, 17, 32]


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


def test_batches_of_several_forms_are_told_apart():
    reader = BatchReader()
    forms = [text(8), (torch.ones(2, 8), torch.ones(2)), {"x": torch.ones(2, 8)}, torch.ones(2, 8), [torch.ones(2, 8)]]
    forms += [{"input_ids": IDS, name: IDS, "labels": IDS} for name in ("attention_mask", "position_ids")]
    first = [reader.read(batch) for batch in forms]
    for _ in range(200):
        assert [reader.read(batch) for batch in forms] == first


def test_a_batch_that_makes_missing_parts_is_left_as_it_is():
    reader = BatchReader()
    for _ in range(100):
        reader.read(defaultdict(list, x=torch.ones(2, 8)))
    batch = defaultdict(list, y=torch.ones(2, 8))
    assert dict(reader.read(batch).shape) == {"y": (2, 8)}
    assert [*batch] == ["y"]


def test_the_shapes_seen_are_bounded_and_the_latest_are_kept():
    reader = BatchReader()
    for length in range(2000):
        assert reader.read({"input_ids": torch.empty(1, length, device="meta")}).tokens == length
    assert len(reader.seen) == 1024
    assert (("input_ids", (1, 1999)),) in reader.seen
