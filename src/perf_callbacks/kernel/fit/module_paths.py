"""Paths of a model's modules. The layers of a list share one path, and wrappers of modules add nothing to a path."""

from collections.abc import Iterator

from torch import nn

from perf_callbacks.kernel.fit.identity import WRAPPERS, parameter_size

_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Attributes in which torch.compile, FSDP and activation checkpointing hold the wrapped module."""


class ModulePaths:
    """Paths of a model's modules, without keeping a module alive.

    A module at several places has the first place's path, as in `named_modules`. If all layers of a list have the same
    class, they share a path with a star, such as `layers.*.mlp`.

    >>> ModulePaths(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))).parameters
    {'': 0, '*': 17}
    """

    def __init__(self, model: nn.Module) -> None:
        self.by_id: dict[int, str] = {}
        self.modules: dict[str, int] = {}
        self.parameters: dict[str, int | None] = {}
        """Of each path, without submodules that have their own. None: unknown."""
        managed = any(getattr(module, "_is_fsdp_managed_module", False) for module in model.modules())
        seen: set[int] = set()
        for path, module in self._walk(model, ""):
            self.modules[path] = self.modules.get(path, 0) + (_wrapped(module) is None)
            total = self.parameters.setdefault(path, 0)
            for parameter in module._parameters.values():  # noqa: SLF001 `parameters` has no shorter form for one module
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    size = parameter_size(parameter, managed=managed)
                    total = None if total is None or size is None else total + size
            self.parameters[path] = total

    def _walk(self, module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in self.by_id:
            return
        self.by_id[id(module)] = path
        yield path, module
        wrapped = _wrapped(module)
        children = {name: child for name, child in module._modules.items() if child is not None}  # noqa: SLF001 `children` drops a module that occurs twice
        kinds = {type(_wrapped(child) or child) for child in children.values()}
        alike = isinstance(module, nn.ModuleList | nn.Sequential) and len(children) > 1 == len(kinds)
        for name, child in children.items():
            under = f"{path}." if path else ""
            yield from self._walk(child, path if child is wrapped else under + ("*" if alike else name))


def _wrapped(module: nn.Module) -> nn.Module | None:
    names = (*_INNER, "module") if type(module).__name__ in WRAPPERS else _INNER
    return next((one for name in names if (one := module._modules.get(name)) is not None), None)  # noqa: SLF001 a wrapper may look up other names in its module
