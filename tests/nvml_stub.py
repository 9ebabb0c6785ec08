"""A stand-in of NVML, compiled from `nvml_stub.c`, which `pynvml` loads through ctypes as the real library."""

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pynvml
import pytest

LIBRARY = "libnvidia-ml.so.1"


@functools.cache
def directory():
    """The directory with the library; None without a compiler for C."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    found = tempfile.mkdtemp(prefix="perf_callbacks-nvml-")
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    source = str(Path(__file__).with_name("nvml_stub.c"))
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", f"{found}/{LIBRARY}", source], check=True)
    return found


def uuid(index):
    """The UUID of a GPU, without prefix."""
    return f"00000000-0000-0000-0000-0000000000{index:02x}"


INSTANCE = "00000000-0000-0000-0000-0000000000ff"
"""The UUID of the MIG instance."""


class Stub:
    """The loaded library, and what its machine has."""

    def __init__(self, library, monkeypatch):
        self._library, self._monkeypatch = library, monkeypatch

    def has(self, **known):
        """Set variables of the library: `has(errors="uuid:3=15")`."""
        for name, value in known.items():
            self._monkeypatch.setenv(f"NVML_STUB_{name.upper()}", str(value))

    @property
    def started(self):
        """Number of starts without an end."""
        return self._library.stub_started()

    @property
    def samples(self):
        """Number of GPM samples that are not freed."""
        return self._library.stub_samples()


def load(monkeypatch):
    """Let `pynvml` load the stand-in in this process."""
    found = directory()
    if found is None:
        pytest.skip("no gcc, which compiles the stand-in of NVML")
    library = ctypes.CDLL(f"{found}/{LIBRARY}")
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", {LIBRARY: library}.__getitem__)
    return Stub(library, monkeypatch)
