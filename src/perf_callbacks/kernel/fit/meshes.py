"""Groups of ranks that process the same samples, by the device meshes of a model's parameters."""

from collections.abc import Collection
from math import prod
from typing import Any

import torch

from perf_callbacks.kernel.foreign_errors import suppress

SAME_SAMPLES = frozenset({"tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp", "cp", "sp", "pp", "pipe"})
"""Mesh dimensions along which all ranks process the same samples."""

OWN_SAMPLES = frozenset({"dp", "data", "data_parallel", "fsdp", "hsdp", "ddp"})
"""Mesh dimensions along which each rank has its own samples; longer names such as "dp_shard" count, too."""

ADVICE = "give the number of ranks with their own samples: measure(..., data_parallel=N)"


class Ambiguous(Exception):  # noqa: N818 an answer, not an error
    """The device meshes don't show which ranks process the same samples. The text says why."""


def data_parallel(model: torch.nn.Module, world_size: int) -> int | None:
    """Return the number of ranks with different samples. None: no mesh says that ranks share samples.

    Raises:     Ambiguous: A parameter's mesh doesn't name its dimensions clearly.
    """
    own = _sharded_as_data(model)
    sizes: dict[str, int] = {}
    for mesh in _meshes(model):
        sizes |= _dimensions(mesh, own=own)
    shared = prod(size for name, size in sizes.items() if _words(name) & SAME_SAMPLES)
    if world_size % shared:
        raise Ambiguous(f"groups of {shared} ranks that share their samples don't divide {world_size} ranks")
    return world_size // shared if shared > 1 else None


def coordinates(model: torch.nn.Module | None) -> dict[str, int]:
    places: dict[str, int] = {}
    for mesh in () if model is None else _meshes(model):
        coordinate = zip(mesh.mesh_dim_names or (), mesh.get_coordinate() or (), strict=False)
        places |= {name: place for number, (name, place) in enumerate(coordinate) if mesh.size(number) > 1}
    return places


def _meshes(model: torch.nn.Module) -> Collection[Any]:
    """Return whole meshes: a pipeline stage has parameters on the slice "dp" of ("pp", "dp"), without stages."""
    meshes = [getattr(parameter, "device_mesh", None) for parameter in model.parameters()]
    slices = {id(mesh): mesh for mesh in meshes if mesh is not None}.values()
    return {id(mesh): mesh for mesh in map(_whole, slices)}.values()


def _whole(mesh: Any) -> Any:
    """Return the mesh from which a mesh was sliced, or itself if the names of the larger mesh are unclear."""
    distributed: Any = torch.distributed
    with suppress(AttributeError, Ambiguous):  # a mesh "world" may have been cut into the dimensions of smaller meshes
        if hasattr(mesh, "_get_root_mesh"):
            root = mesh._get_root_mesh()  # noqa: SLF001 there is no public way
        else:  # an older torch
            root = distributed.device_mesh._mesh_resources.get_root_mesh(mesh)  # noqa: SLF001
        _dimensions(root, own=False)
        return root
    return mesh


def _dimensions(mesh: Any, *, own: bool) -> dict[str, int]:
    names = mesh.mesh_dim_names or [""] * mesh.ndim
    sizes = [(name, int(mesh.size(place))) for place, name in enumerate(names) if mesh.size(place) > 1]
    if own and [name for name, _ in sizes] == [""]:
        return {"dp": sizes[0][1]}
    for name, _ in sizes:
        if bool(_words(name) & SAME_SAMPLES) == bool(_words(name) & OWN_SAMPLES):  # "dp_cp" contains both
            called = f"named {name!r}" if name else "without a name"
            raise Ambiguous(f"a mesh dimension {called} doesn't say whether its ranks share their samples")
    return dict(sizes)


def _words(name: str) -> set[str]:
    return {*name.lower().split("_"), name.lower()}


def _sharded_as_data(model: torch.nn.Module) -> bool:
    """Return True if `fully_shard` was called on a module. The meshes that it makes may have no names."""
    distributed: Any = torch.distributed  # torch documents it without exporting it to type checkers
    kind = getattr(distributed.fsdp, "FSDPModule", None) if distributed.is_available() else None
    return kind is not None and any(isinstance(module, kind) for module in model.modules())
