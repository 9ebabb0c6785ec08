"""Versions of the packages that the program has loaded, and of the GPU's driver."""

import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from perf_callbacks.kernel.foreign_errors import suppress

MOST_PACKAGES = 200

FIRST = ("torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "triton", "deepspeed", "flash_attn")
"""Listed first, so that a short message names them."""

DRIVERS = {"nvidia_driver": Path("/sys/module/nvidia/version"), "amdgpu_driver": Path("/sys/module/amdgpu/version")}

NAMED = frozenset({"perf_callbacks", "python", *FIRST, *DRIVERS})

LONGEST = 60


def loaded() -> dict[str, str]:
    """Return the version of each loaded package by import name, without Python's standard library."""
    names = {name for name in [*sys.modules] if "." not in name and not name.startswith("_")}
    chosen = [*[name for name in FIRST if name in names], *sorted(names - _LISTED_APART)]
    versions = {name: _version(name) for name in chosen[:MOST_PACKAGES]}
    return {name: version for name, version in versions.items() if version is not None}


def drivers() -> dict[str, str]:
    """Drivers that are part of Linux are left out."""
    versions: dict[str, str] = {}
    for name, file in DRIVERS.items():
        with suppress(OSError, UnicodeDecodeError):
            versions[name] = file.read_text(encoding="utf-8").strip()[:LONGEST]
    return versions


_LISTED_APART = frozenset({*FIRST, *sys.stdlib_module_names})


def _version(name: str) -> str | None:
    """From the module or, more slowly, from the metadata on the disk."""
    with suppress(Exception):  # any package's code
        attribute = vars(sys.modules[name]).get("__version__")
        version = attribute if isinstance(attribute, str) else _version_on_disk(name)
        return version and version[:LONGEST]
    return None


@cache
def _version_on_disk(name: str) -> str | None:
    with suppress(Exception):  # damaged metadata
        return metadata.version(name)
    return None
