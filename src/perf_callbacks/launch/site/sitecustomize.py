"""Measure all trainers of this Python process, and import the next `sitecustomize` on the search path.

`perf-callbacks run` puts this directory on PYTHONPATH, so interpreters of any version, even without this package,
may import this file.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
try:
    from perf_callbacks.launch.autoload import arm_if_asked

    arm_if_asked()
except Exception:  # noqa: BLE001, S110 then this program is not measured
    pass
_ours = sys.modules.pop(__name__)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 the hidden one
except ImportError as error:
    if getattr(error, "name", __name__) != __name__:  # errors of Python 2 have no name
        raise
finally:
    sys.modules.setdefault(__name__, _ours)
