"""The stream that all sides process, and the Python function that some of them run per key.

The key, value and event time of row i are functions of i, so that each engine makes the rows in its own
fastest way and none waits for a file or a broker. Needs only the standard library: it is imported by the
interpreters of all peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECOND_US = 1_000_000
WINDOW_S = 1
REPORT_EVERY = 10
"""The function per key reports on each 10th row of its key."""
_PRIME = 2_654_435_761
_MODULUS = 1_000_003

TASKS = ("pass_through", "sum", "windowed", "python_fn")


@dataclass(frozen=True)
class Stream:
    """Rows (k, v, event time). In each block of `keys` rows every key occurs once."""

    keys: int = 100_000
    rows_per_window: int = 1_000_000
    """Rows per second of event time, which is the length of a window; a divisor of a million."""

    @property
    def us_per_row(self) -> int:
        """Microseconds of event time between two rows."""
        return SECOND_US // self.rows_per_window

    def columns(self, number: Any) -> tuple[Any, Any, Any]:
        """Key, value and event time in microseconds of rows: of an int, or of a NumPy array of int64.

        >>> Stream(keys=10, rows_per_window=1000).columns(12)
        (3, 12, 12000)
        """
        key = (number * _PRIME + number // self.keys) % self.keys
        return key, number % 1000, number * self.us_per_row

    def sql(self, number: str, divide: str) -> dict[str, str]:
        """The same as SQL over a column of row numbers. `divide` is the dialect's integer division.

        >>> Stream(keys=10, rows_per_window=1000).sql("i", "//")["t"]
        'i * 1000'
        """
        shifted = f"{number} * CAST({_PRIME} AS BIGINT) + ({number} {divide} {self.keys})"
        return {
            "k": f"({shifted}) % {self.keys}",
            "v": f"{number} % 1000",
            "t": f"{number} * {self.us_per_row}",
        }


FULL = Stream()
SMALL = Stream(keys=1_000, rows_per_window=10_000)
"""The stream whose answers are compared: 10 rows per key and window."""
SMALL_ROWS = 40_000

State = tuple[int, int, int]


def fold(state: State | None, v: int) -> State:
    """The function per key: its number of rows, a checksum, and which remainders were seen.

    The result does not depend on the order of rows, so that it can be compared with SQL's.

    >>> fold(fold(None, 2), 3)
    (2, 13, 12)
    """
    n, checksum, seen = state or (0, 0, 0)
    return n + 1, (checksum + v * v) % _MODULUS, seen | 1 << (v % 61)


def fold_sql() -> str:
    """The function's result after all rows of a key, as SQL aggregates over v."""
    return f"count(*), sum(v * v) % {_MODULUS}, bit_or(1::BIGINT << (v % 61)::INT)"
