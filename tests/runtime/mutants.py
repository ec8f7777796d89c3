"""Classes that differ from real ones in a line or two, to check that tests detect such errors."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any


def mutant(real: type, old: str, new: str) -> Any:
    """The real class with `old` replaced by `new` in its source, where it must occur exactly once."""
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, f"not exactly once in the source of {real.__name__}: {old}"
    names = dict(vars(sys.modules[real.__module__]))
    exec(source.replace(old, new), names)
    return names[real.__name__]
