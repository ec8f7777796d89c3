"""Classes that differ from real ones in a line or two, to see that checks find out what is wrong."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any


def mutant(real: type, old: str, new: str) -> Any:
    """The real class with one place of its source changed, which must be there."""
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, f"{real.__name__} has not got this once: {old}"
    names = dict(vars(sys.modules[real.__module__]))
    exec(source.replace(old, new), names)
    return names[real.__name__]
