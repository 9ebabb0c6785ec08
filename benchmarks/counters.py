"""Who counts FLOPs of a step, each with its way, and the models that are trained in one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch

from perf_callbacks.flops.counting.count_window import CountWindow
from perf_callbacks.flops.counting.counter import FlopCounter

BATCH, LENGTH, RANK, ADAPTED = 2, 128, 8, ("q_proj", "v_proj")


def shape(hidden: int) -> dict[str, int]:
    return {
        "vocab_size": 2048,
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": 4,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 128,
        "max_position_embeddings": LENGTH,
    }


class Case:
    """A model that is trained in one way, on one batch."""

    def __init__(self, hidden: int, attention: str, checkpointing: str, training: str) -> None:
        self.hidden, self.attention, self.checkpointing, self.training = hidden, attention, checkpointing, training
        self.model = self.build()
        self.batch = {name: torch.randint(0, 2048, (BATCH, LENGTH)) for name in ("input_ids", "labels")}
        self.optimizer = torch.optim.AdamW([one for one in self.model.parameters() if one.requires_grad])

    def build(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**shape(self.hidden), attn_implementation=self.attention)).train()
        if self.checkpointing != "none":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.training == "lora":
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=RANK, target_modules=list(ADAPTED), lora_dropout=0.0))
        return model

    def step(self) -> None:
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def by_hand(self):
        from flops.by_hand import FULL, Hand, Training
        from flops.formulas_by_hand import llama
        from flops.models import rotary_is_a_product

        trained = FULL if self.training == "full" else Training(name="lora", adapted=ADAPTED, rank=RANK)
        hand = Hand(
            training=trained,
            fused=self.attention == "sdpa",
            checkpointing=self.checkpointing,
            inputs_need=self.training == "lora" and self.checkpointing != "none",  # transformers asks for it
        )
        config = SimpleNamespace(**shape(self.hidden), rotary_is_a_product=rotary_is_a_product("Llama"))
        llama(hand, config, BATCH, LENGTH)
        return hand.model_flops, sum(hand.by_phase.values())


@dataclass(frozen=True)
class Tool:
    """Somebody who counts."""

    name: str
    count: Callable[[Case], tuple[int, ...]]
    """Counts in a step of a case, or beside one that follows."""
    needs: str = "torch"


def without_modules(case: Case, model: torch.nn.Module | None = None) -> tuple[int, int]:
    window = CountWindow(counter=FlopCounter(model=model))
    window.open()
    case.step()
    window.close()
    work = window.counter.work()
    if model is not None:
        window.counter.modules.lines(work)
    return work.model_flops, work.hardware_flops


def ours(case: Case) -> tuple[int, int]:
    return without_modules(case, getattr(case, "model", None))


def stock(case: Case) -> tuple[int]:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as mode:
        case.step()
    return (mode.get_total_flops(),)


def lightning(case: Case) -> tuple[int]:
    from lightning.fabric.utilities.throughput import measure_flops

    with torch.device("meta"):
        model = case.build()
    batch = {name: one.to("meta") for name, one in case.batch.items()}
    flops = measure_flops(model, partial(model, **batch), lambda output: output.loss)
    case.step()
    return (flops,)


def deepspeed(case: Case) -> tuple[int]:
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    profiler = FlopsProfiler(case.model)
    profiler.start_profile()
    case.step()
    flops = profiler.get_total_flops()
    profiler.end_profile()
    return (int(flops),)


def calflops(case: Case) -> tuple[int]:
    from calflops import calculate_flops

    flops, _, _ = calculate_flops(
        case.model,
        kwargs=dict(case.batch),
        include_backPropagation=True,
        print_results=False,
        print_detailed=False,
        output_as_string=False,
    )
    case.model.train()
    case.step()
    return (int(flops),)


def six_n(case: Case) -> tuple[int]:
    case.step()
    return (6 * BATCH * LENGTH * sum(one.numel() for one in case.model.parameters()),)


def total_flos(case: Case) -> tuple[int]:
    """As `Trainer.floating_point_ops` has it."""
    case.step()
    return (6 * BATCH * LENGTH * case.model.num_parameters(exclude_embeddings=True),)


TOOLS = (
    Tool("ours", ours),
    Tool("ours, without modules", without_modules),
    Tool("torch's FlopCounterMode", stock),
    Tool("Lightning's measure_flops, on meta", lightning, "lightning"),
    Tool("DeepSpeed's flops profiler", deepspeed, "deepspeed.profiling.flops_profiler"),
    Tool("calflops, with its backward", calflops, "calflops"),
    Tool("transformers' total_flos", total_flos),
    Tool("6N, every parameter", six_n),
)


def nobody(case: Case) -> tuple[int]:
    case.step()
    return (0,)


AGAIN = Tool("nobody (the control)", nobody)
