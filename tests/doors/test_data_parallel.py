"""In how many parts ranks share the samples, as far as the frameworks say so."""

from types import SimpleNamespace

import lightning
import pytest
import torch

import perf_callbacks.accelerate as accelerate_door
import perf_callbacks.lightning as lightning_door


def a_trainer(strategy, world_size=8):
    strategy.root_device = torch.device("cpu")
    module = SimpleNamespace(automatic_optimization=True)
    return SimpleNamespace(
        default_root_dir=".",
        strategy=strategy,
        global_rank=0,
        world_size=world_size,
        lightning_module=module,
        global_step=0,
    )


class Refusing:
    @property
    def distributed_sampler_kwargs(self):
        raise AssertionError("no device mesh yet")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 8, "rank": 3}), 8),
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 4, "rank": 1}), 4),
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 1, "rank": 0}), 1),
        (SimpleNamespace(), None),
        (SimpleNamespace(distributed_sampler_kwargs={}), None),
        (SimpleNamespace(distributed_sampler_kwargs=None), None),
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 0}), None),
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 16}), None),
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": "8"}), None),
        (Refusing(), None),
    ],
)
def test_lightnings_strategy_says_it_by_the_sampler_of_its_loaders(strategy, expected):
    place = lightning_door.PerfCallback()._place(a_trainer(strategy), None)
    assert (place.data_parallel, place.world_size) == (expected, 8)


def test_lightnings_strategy_for_one_process_does_not_say_it():
    strategy = lightning.pytorch.strategies.SingleDeviceStrategy(device="cpu")
    trainer = a_trainer(SimpleNamespace(), world_size=1)
    trainer.strategy = strategy
    assert lightning_door.PerfCallback()._place(trainer, None).data_parallel is None


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        ({}, None),
        ({"parallelism_config": None}, None),
        ({"parallelism_config": SimpleNamespace(non_data_parallel_size=1)}, 8),
        ({"parallelism_config": SimpleNamespace(non_data_parallel_size=4)}, 2),
    ],
)
def test_accelerate_says_it_by_what_is_parallel_besides(parallelism, expected):
    accelerator = SimpleNamespace(
        project_dir=None, device=torch.device("cpu"), process_index=0, num_processes=8, **parallelism
    )
    place = accelerate_door._place(accelerator, None)
    assert (place.data_parallel, place.world_size) == (expected, 8)
