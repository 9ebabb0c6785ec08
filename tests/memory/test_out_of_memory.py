"""Failed allocations: which errors are such, where they failed, and what exists then."""

import traceback
import weakref

import pytest
import torch
from rows import each_row
from torch import nn

from perf_callbacks.kernel.records.machine_records import HeldMemory, OutOfMemory
from perf_callbacks.kernel.records.module_records import OUTSIDE, ModuleWork
from perf_callbacks.memory.out_of_memory import (
    MOST_LOOKS,
    Holdings,
    coming_state_gb,
    failed_allocation,
    few_tensors,
    place,
    requested_bytes,
    variables,
)
from perf_callbacks.memory.out_of_memory_text import lines

CPU = (
    "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "400000000 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


@each_row(
    ("error", "found"),
    [
        (torch.OutOfMemoryError(CUDA), True),
        (RuntimeError(CPU), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1.2 GiB)"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
        (None, False),
    ],
)
def test_only_failed_allocations_are_such(error, found):
    assert failed_allocation(error) is (error if found else None)


def test_a_cause_is_found():
    error = ValueError("the trainer failed")
    error.__cause__ = RuntimeError(CPU)
    assert failed_allocation(error) is error.__cause__
    error.__cause__ = error
    assert failed_allocation(error) is None


@pytest.mark.parametrize(("message", "size"), [(CPU, 400_000_000), (CUDA, 2 * 2**30), ("no", None)])
def test_the_message_says_the_size(message, size):
    assert requested_bytes(message) == size


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000))

    def forward(self, rows):
        large = rows * self.weight
        if rows.sum() > 5000:
            raise torch.OutOfMemoryError(CUDA)
        return large


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, rows):
        for layer in self.layers:
            rows = layer(rows) + 9
        return rows


def failed(call):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        call()
    return caught.value


def test_the_innermost_module_and_its_variables_are_found():
    net = Net()
    failure = place(failed(lambda: net(torch.ones(1000))))
    assert (failure.stage, failure.module, failure.layer(net)) == ("forward", net.layers[1], (2, 2))
    held = Holdings(net, [], "cpu")
    held.add_failed_call(failure)
    assert held.gb("weights") == 8000 / 1e9
    assert held.gb("failed call") * 1e9 == 2 * 4000  # the rows, which both hold, and the product
    assert [one.path for one in held.largest(())] == ["layers.*", "", "layers.*"]


def test_a_model_in_evaluation_is_found():
    net = Net().eval()
    assert place(failed(lambda: net(torch.ones(1000)))).stage == "evaluation"
    net.train()
    net.layers[1].eval()  # frozen
    assert place(failed(lambda: net(torch.ones(1000)))).stage == "forward"


def test_the_backward_and_the_optimizer_are_found():
    def raises(*_):
        raise torch.OutOfMemoryError(CUDA)

    weight = nn.Parameter(torch.ones(3))
    product = weight * 2
    product.register_hook(raises)
    assert place(failed(product.sum().backward)).stage == "backward"
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_pre_hook(raises)
    assert place(failed(optimizer.step)).stage == "optimizer"
    nowhere = place(failed(raises))
    assert (nowhere.stage, nowhere.module, nowhere.layer(Net())) == (None, None, None)


def test_gradients_and_state_belong_to_the_module_of_their_weight():
    net = Net()
    optimizer = torch.optim.AdamW(net.layers[0].parameters())
    net(-10 * torch.ones(1000)).sum().backward()
    optimizer.step()
    held = Holdings(net, [optimizer], "cpu")
    assert [held.gb(kind) * 1e9 for kind in ("weights", "gradients")] == [8000, 8000]
    assert held.gb("optimizer") * 1e9 == pytest.approx(8000, abs=8)  # and a number of steps
    counted = [ModuleWork(path="layers.*", activation_bytes=10**6), ModuleWork(path=OUTSIDE, activation_bytes=10**7)]
    assert held.largest(counted)[0] == HeldMemory(path="layers.*", kind="activations", gb=0.001)


REPORT = OutOfMemory(
    step=3, device="cuda", error="CUDA out of memory.", stage="backward", requested_gb=2.5, weights_gb=8.0,
    gradients_gb=0.0, other_gb=60.0, largest=(HeldMemory(path="", kind="weights", gb=8.0),), micro_batch=16,
    fitting_micro_batch=12, layers=32, layers_to_checkpoint=6,
)  # fmt: skip


def test_the_text_of_a_report():
    assert lines(REPORT, rank=1) == [
        "rank 1: out of memory on cuda in the backward after 3 steps: CUDA out of memory.",
        "failed request 2.5 GB",
        "held: weights 8 GB, other tensors 60 GB",
        "largest: (the model itself) weights 8 GB",
        "micro-batch 12 would have fitted, 16 didn't, by the memory of a measured step",
        "checkpointing 6 of 32 layers would have been enough",
    ]


@each_row(
    ("known", "words"),
    [
        ({"fitting_micro_batch": None, "about_micro_batch": 4}, "about micro-batch 4 would have fitted, 16 didn't"),
        ({"fitting_micro_batch": None}, "unknown micro-batch that would have fitted"),
        ({"fitting_micro_batch": 20, "stage": "evaluation"}, "out of memory on cuda in the evaluation after"),
        ({"fitting_micro_batch": 0}, "no micro-batch would have fitted"),
        ({"fitting_micro_batch": 20}, "these samples were larger"),
    ],
)
def test_a_report_that_knows_less_says_less(known, words):
    fields = {name: getattr(REPORT, name) for name in ("step", "device", "error", "micro_batch")} | known
    assert words in lines(OutOfMemory(**fields), rank=0)[-1]


class Counting(list):
    """A list that counts how many of its elements are read."""

    read = 0

    def __iter__(self):
        for one in super().__iter__():
            self.read += 1
            yield one


def test_tensors_are_found_in_containers_that_are_large_or_hold_themselves():
    tensor, own, large = torch.ones(2), [], Counting([0] * 100_000)
    own += [own, {"held": (tensor,)}]
    found = few_tensors([tensor, own, large])
    assert {id(one) for one in found} == {id(tensor)}
    assert large.read <= MOST_LOOKS


def fail_with_a_tensor():
    held = torch.ones(3)
    raise MemoryError(held.numel())


def test_reading_the_variables_of_a_failed_call_keeps_nothing_alive():
    with pytest.raises(MemoryError) as raised:
        fail_with_a_tensor()
    frame = raised.value.__traceback__.tb_next.tb_frame
    gone = weakref.ref(variables(frame)["held"])
    traceback.clear_frames(raised.value.__traceback__)
    assert gone() is None


@pytest.mark.parametrize(("kind", "each"), [("Adam", 2), ("SGD", 0), ("RMSprop", 0)])
def test_state_that_is_still_to_come(kind, each):
    optimizer = getattr(torch.optim, kind)([nn.Parameter(torch.ones(1000))], lr=0.1)
    assert coming_state_gb([optimizer]) * 1e9 == 4000 * each
    optimizer.state["made"] = 1
    assert coming_state_gb([optimizer, torch.optim.SGD([torch.ones(9)], lr=0.1, momentum=0.9)]) * 1e9 == 36
