"""In how many parts ranks share the samples, as far as the frameworks say so."""

from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch
from rows import each_row
from torch.distributed.fsdp import FSDPModule

from perf_callbacks.integrations.accelerate import accelerator_session
from perf_callbacks.integrations.lightning import hooks
from perf_callbacks.kernel.fit.location import FitLocation, by_meshes
from perf_callbacks.kernel.settings.config import ConfigError
from perf_callbacks.loop import measure


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
        loggers=[],
    )


class Refusing:
    @property
    def distributed_sampler_kwargs(self):
        raise AssertionError("no device mesh yet")


@each_row(
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
def test_a_strategy_of_lightning_says_it_by_the_sampler_of_its_loaders(strategy, expected):
    assert hooks.data_parallel_of(a_trainer(strategy)) == expected


def test_a_strategy_of_lightning_for_a_single_process_does_not_say_it():
    strategy = lightning.pytorch.strategies.SingleDeviceStrategy(device="cpu")
    trainer = a_trainer(SimpleNamespace(), world_size=1)
    trainer.strategy = strategy
    assert hooks.data_parallel_of(trainer) is None


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        ({}, None),
        ({"parallelism_config": None}, None),
        ({"parallelism_config": SimpleNamespace(non_data_parallel_size=1)}, 8),
        ({"parallelism_config": SimpleNamespace(non_data_parallel_size=4)}, 2),
    ],
)
def test_accelerate_says_it_by_its_other_kinds_of_parallelism(parallelism, expected):
    accelerator = SimpleNamespace(
        project_dir=None, device=torch.device("cpu"), process_index=0, num_processes=8, **parallelism
    )
    place = accelerator_session.place_of(accelerator, None)
    assert (place.data_parallel, place.world_size) == (expected, 8)


class Mesh:
    """As a device mesh tells of itself."""

    def __init__(self, *sizes, names=None, root=None):
        self.sizes, self.ndim, self.mesh_dim_names, self.root = sizes, len(sizes), names, root or self

    def _get_root_mesh(self):
        return self.root

    def size(self, place):
        return self.sizes[place]


class Lying(torch.nn.Parameter):
    """A parameter on a mesh."""


def on(*all_meshes, kind=torch.nn.Module):
    model = kind()
    for number, mesh in enumerate(all_meshes):
        parameter = Lying(torch.ones(1))
        parameter.device_mesh = mesh
        model.register_parameter(f"p{number}", parameter)
    model.register_parameter("whole", torch.nn.Parameter(torch.ones(1)))
    return model


class Sharded(FSDPModule, torch.nn.Module):
    def __new__(cls):  # as `fully_shard` makes it of another
        return torch.nn.Module.__new__(cls)


@each_row(
    ("model", "expected"),
    [
        (on(), None),
        (on(Mesh(8, names=("tp",))), 1),
        (on(Mesh(2, names=("tp",))), 4),
        (on(Mesh(4, 2, names=("dp", "tp"))), 4),
        (on(Mesh(4, 2, names=("fsdp", "model"))), 4),
        (on(Mesh(2, 2, 2, names=("dp_replicate", "dp_shard", "tp"))), 4),
        (on(Mesh(2, 4, names=("dp_replicate", "dp_shard"))), None),
        (on(Mesh(2, names=("tp",)), Mesh(2, 2, names=("tp", "cp"))), 2),
        (on(Mesh(8, 1, names=("dp", "strange"))), None),
        (on(Mesh(4, names=("dp",), root=Mesh(2, 4, names=("pp", "dp")))), 4),
        (on(Mesh(4, names=("dp_cp",), root=Mesh(2, 2, 2, names=("dp", "cp", "tp")))), 2),
        (on(Mesh(8, names=("fsdp",), root=Mesh(8, names=("world",)))), None),
        (on(Mesh(8), kind=Sharded), None),
        (on(Mesh(8)), "without a name"),
        (on(Mesh(4, 2)), "without a name"),
        (on(Mesh(4, 2), kind=Sharded), "without a name"),
        (on(Mesh(8, names=("dp_cp",))), "named 'dp_cp'"),
        (on(Mesh(8, names=("expert",))), "named 'expert'"),
        (on(Mesh(3, names=("tp",))), "don't divide 8 ranks"),
    ],
)
def test_meshes_of_parameters_say_it_by_names_of_dimensions(model, expected):
    place = by_meshes(
        FitLocation(integration="loop", directory=Path(), device=torch.device("cpu"), world_size=8), model
    )
    if isinstance(expected, str):
        assert place.data_parallel is None
        assert expected in place.ambiguous
    else:
        assert (place.data_parallel, place.ambiguous) == (expected, None)


def test_meshes_overrule_no_framework_and_no_single_process():
    usual = {"integration": "loop", "directory": Path(), "device": torch.device("cpu")}
    place = FitLocation(**usual, world_size=8, data_parallel=2)
    assert by_meshes(place, on(Mesh(8))) == place
    alone = FitLocation(**usual)
    assert by_meshes(alone, on(Mesh(8))) == alone


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", True])
def test_a_size_that_makes_no_sense_is_refused_at_once(wrong):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ConfigError, match=f"data_parallel: got {wrong!r}, wanted a number of ranks above 0."):
        measure(model=model, optimizer=optimizer, loader=(), data_parallel=wrong)
