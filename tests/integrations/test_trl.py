"""TRL's trainer, padded and packed: the Trainer with loaders and losses of its own."""

import pytest
import trl
from datasets import Dataset
from metric_keys import LOGGED, needing, of_run
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from trainings import models, runs
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from perf_callbacks import PerfConfig
from perf_callbacks.flops import fingerprint
from perf_callbacks.kernel.records.flops_record import Flops
from perf_callbacks.kernel.records.metric_table import FLOPS, GC, MASK
from perf_callbacks.transformers import PerfCallback

LENGTHS = (5, 9, 14, 20)
TRL = int(trl.__version__.partition(".")[0])


@pytest.fixture
def tokenizer():
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{number}": number for number in range(3, models.VOCABULARY)}
    model = Tokenizer(WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    names = ["input_ids", "attention_mask"]  # as those of a Llama; transformers 4 would add more
    return PreTrainedTokenizerFast(tokenizer_object=model, model_input_names=names, **special)


@pytest.fixture
def texts():
    lengths = [LENGTHS[row % len(LENGTHS)] for row in range(40)]
    return Dataset.from_list([{"text": " ".join(f"w{3 + word}" for word in range(length))} for length in lengths])


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")  # set by TRL itself
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_every_row_has_metrics_and_the_amounts_that_the_model_saw(tmp_path, tokenizer, texts, packing):
    ours, seen = PerfCallback(), {}
    arguments = models.training_arguments(
        tmp_path, kind=SFTConfig, max_length=32, packing=packing, gradient_accumulation_steps=2, max_steps=8
    )
    trainer = SFTTrainer(
        model=models.llama(), args=arguments, train_dataset=texts, processing_class=tokenizer, callbacks=[ours]
    )

    def look(module, _args, inputs):
        step, ids, mask = trainer.state.global_step + 1, inputs["input_ids"], inputs.get("attention_mask")
        seen.setdefault(step, []).append((len(ids), ids.numel(), None if mask is None else int(mask.sum())))

    trainer.model.register_forward_pre_hook(look, with_kwargs=True)
    metrics = trainer.train().metrics

    amounts = {step: [*map(list, zip(*batches, strict=True))] for step, batches in seen.items()}
    steps = runs.steps(tmp_path)
    one_row = packing and TRL >= 1  # which holds several sequences
    assert [(step["step"], step["samples"], step["tokens"]) for step in steps] == [
        (step, None if one_row else sum(samples), sum(tokens)) for step, (samples, tokens, _) in amounts.items()
    ]
    excluded = [step["excluded"] for step in steps]
    # There is a shape in the third that the second has not. Two lengths tell of it, unless the loss comes in chunks.
    assert excluded[:3] == ["first", "counted", "recounted" if TRL >= 1 else None]
    unlike = packing and TRL >= 1  # it packs so that hardly any shape comes again: the third count tells of them all
    assert {*excluded[3:]} <= ({"recounted", None} if unlike else {None})
    included = [step["step"] for step in steps if step["excluded"] is None]
    useful = [amount for step in included for amount in amounts[step][2]]
    assert ours.summary.included_useful_tokens == (None if None in useful else sum(useful))
    assert (None in useful) == packing

    rows = {row["step"]: row for row in trainer.state.log_history if "loss" in row}
    keys = {step: {key for key in row if key.startswith("perf/")} for step, row in rows.items()}
    run = {key: value for key, value in metrics.items() if key.startswith("perf/run/")}
    unknown = ({"perf/samples_per_second"} if one_row else set()) | (needing(MASK) if packing else set())
    if unlike or TRL < 1:  # counts of several sizes confirm each other
        unknown |= {"perf/flops_counted_once"}
    mixed = {"perf/mfu_mixed"} & {key.replace("run/", "") for key in run}  # of versions that train in bfloat16
    whole = (LOGGED - unknown) | mixed
    assert run.keys() == {*of_run(whole)}
    assert all([run[key] > 0 for key in of_run(whole - needing(GC))])
    counted = {step["step"] for step in steps if step.get("model_flops") is not None}
    assert keys == {
        step: set() if step not in included else whole if step in counted else whole - needing(FLOPS)
        for step in range(1, 9)
    }
    assert counted & {*included} == {*included}


@pytest.mark.filterwarnings(r"ignore:`\w*gradient_checkpointing\w*` is deprecated:FutureWarning")  # used by TRL itself
@pytest.mark.parametrize("accumulation", [1, 2])
def test_in_a_batch_of_preferences_each_sequence_is_a_sample(tmp_path, tokenizer, accumulation):
    # TRL puts chosen and rejected answers into one tensor, and says nowhere that they are pairs. Versions before 1 have
    # a tensor of each, which agree on the pairs.
    ours, seen = PerfCallback(), []
    pairs = Dataset.from_list(
        [{"prompt": f"w{3 + row} w4", "chosen": "w5 w6 w7", "rejected": "w8 w9"} for row in range(32)]
    )
    arguments = models.training_arguments(
        tmp_path, kind=DPOConfig, max_length=32, gradient_accumulation_steps=accumulation, max_steps=4
    )
    trainer = DPOTrainer(
        model=models.llama(),
        ref_model=models.llama(),
        args=arguments,
        train_dataset=pairs,
        processing_class=tokenizer,
        callbacks=[ours],
    )
    inner = trainer.training_step

    def look(model, inputs, *rest, **more):
        seen.append({name: tuple(tensor.shape) for name, tensor in inputs.items() if hasattr(tensor, "shape")})
        return inner(model, inputs, *rest, **more)

    trainer.training_step = look
    trainer.train()
    rows = 4 * accumulation * 4  # of the dataset: a pair each
    together = {shapes["input_ids"][0] for shapes in seen if "input_ids" in shapes}
    assert together in ({8}, set())
    assert ours.summary.samples == (2 * rows if together else rows)
    ids = [shape for shapes in seen for name, shape in shapes.items() if name.endswith("input_ids")]
    assert ours.summary.tokens == sum(rows * length for rows, length in ids)


@pytest.mark.filterwarnings(r"ignore:`\w*gradient_checkpointing\w*` is deprecated:FutureWarning")  # used by TRL itself
@pytest.mark.skipif(TRL < 1, reason="no fused head")
@pytest.mark.parametrize("kind", [SFTTrainer, DPOTrainer])
def test_a_fused_head_is_counted_once_and_its_second_time_is_recompute(tmp_path, tokenizer, kind):
    preferences = kind is DPOTrainer
    rows, length = (8, 5) if preferences else (4, 12)
    text = [f"w{3 + word}" for word in range(length)]
    answers = {"prompt": "w3 w4", "chosen": "w5 w6 w7", "rejected": "w8 w9 w10"}
    row = answers if preferences else {"text": " ".join(text)}
    arguments = models.training_arguments(
        tmp_path,
        kind=DPOConfig if preferences else SFTConfig,
        max_length=32 if preferences else length,
        max_steps=3,
        gradient_checkpointing=False,
    )
    trainer = kind(
        model=models.llama(),
        args=arguments,
        train_dataset=Dataset.from_list([row] * 32),
        processing_class=tokenizer,
        callbacks=[PerfCallback()],
        **({"ref_model": models.llama()} if preferences else {}),
    )
    trainer.train()
    # widths: model 16, MLP 32, vocabulary 64; one layer; each token but the last predicts one
    layer = 2 * rows * length * (4 * 16 * 16 + 3 * 16 * 32) + 4 * rows * length**2 * 16
    head = 2 * rows * (length - 1) * 16 * 64
    forward = (layer + head) * (2 if preferences else 1)  # of the reference too
    (record,) = runs.records(tmp_path, Flops)
    assert record.by_phase == {
        "forward": forward,
        "backward": 2 * (layer + head),
        "recompute": head,
        "attention_recompute": 2 * rows * length**2 * 16,
    }
    assert record.model_flops == forward + 2 * (layer + head)


def online(directory, tokenizer, ours, *, kind=GRPOTrainer, model=None, reward=None, **more):
    """A trainer for reinforcement learning whose model generates two completions of each prompt."""
    return kind(
        model=models.llama() if model is None else model,
        reward_funcs=reward or (lambda completions, **_: [float(len(completion)) for completion in completions]),
        args=models.training_arguments(directory, kind=GRPOConfig, num_generations=2, max_completion_length=4, **more),
        train_dataset=Dataset.from_list([{"prompt": f"w{3 + row} w4"} for row in range(32)]),
        processing_class=tokenizer,
        callbacks=[ours],
    )


@pytest.mark.filterwarnings("ignore")  # of TRL, about a model and a tokenizer that are as small as these
def test_generation_and_rewards_are_named_parts_of_other(tmp_path, tokenizer):
    ours, rewarded = PerfCallback(PerfConfig(flops="off")), []

    def reward(completions, **_):
        rewarded.append(len(completions))
        return [float(len(completion)) for completion in completions]

    trainer = online(tmp_path, tokenizer, ours, reward=reward, max_steps=6, logging_steps=3)
    trainer.train()
    parts = ours.summary.other_seconds
    assert rewarded
    assert {*parts} == {"generation", "rewards"}
    assert 0 < parts["rewards"] < parts["generation"] < sum(parts.values()) <= ours.summary.stage_seconds["other_time"]
    assert not {"_generate", "_calculate_rewards"} & {*vars(trainer)}


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.parametrize(
    ("more", "lower_bound"), [({}, False), ({"beta": 0.1}, True), ({"beta": 0.1, "steps_per_generation": 4}, True)]
)
def test_the_reference_model_of_an_online_trainer_makes_a_lower_bound(
    tmp_path, tokenizer, more, lower_bound, monkeypatch
):
    monkeypatch.setattr(fingerprint, "compiles", lambda: False)  # what an earlier test has compiled
    ours = PerfCallback(PerfConfig(gc="off"))
    models.llama().save_pretrained(tmp_path / "model")
    online(tmp_path, tokenizer, ours, model=str(tmp_path / "model"), max_steps=6, **more).train()
    names = ("LlamaForCausalLM without gradients",) * lower_bound
    assert (ours.summary.flops.lower_bound, ours.summary.flops.uncounted) == (lower_bound, names)


@pytest.mark.filterwarnings("ignore")  # as above
def test_samples_of_an_online_trainer_are_the_completions_of_a_step(tmp_path, tokenizer):
    ours, seen = PerfCallback(PerfConfig(flops="off")), {}

    class Counted(GRPOTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen[self.state.global_step + 1] = seen.get(self.state.global_step + 1, 0) + len(inputs["completion_ids"])
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = online(
        tmp_path, tokenizer, ours, kind=Counted, gradient_accumulation_steps=2, max_steps=4, logging_steps=2
    )
    trainer.train()
    assert {step["step"]: step["samples"] for step in runs.steps(tmp_path)} == seen
    assert not {"compute_loss", "training_step"} & {*vars(trainer)}
