"""What can be said of any picture: it is small, as wide as the others, and not empty."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np


def assert_drawn(files: Iterable[Path]) -> None:
    from PIL import Image

    for file in files:
        assert file.stat().st_size < 150_000
        pixels = np.asarray(Image.open(file).convert("RGB")) / 255
        assert pixels.shape[1] == 1200
        for half in np.array_split(pixels, 2, axis=1):
            assert half.var() > 0.001, file.name
