"""The base class of user code for `process`, with state and timers per key.

To port a PySpark `StatefulProcessor`, rename its methods: `handleInputRows` becomes `handle_input_rows`,
`getValueState` becomes `get_value_state`, and so on. The differences are:

- Timers fire when an epoch opens, before its rows and not after them. A timer is deleted before its
  handler runs, so the handler may register it again.
- A processor may have timers of both kinds. Use `register_timer(at, time="event")` for event time.
- `put` with an empty list clears the state, where Spark raises an error.
- Timestamps have their time zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.state.variables.handle import ExpiredTimer, StateHandle, Timers
from penstock.state.variables.values import Row


class KeyedProcessor:
    """Base class of user code with keyed state. Define `init` and one of these methods:

    - `handle_input_rows(key, rows, timers)` is called once per key and channel.
    - `handle_batch(batch, timers)` is called once per slot and channel, with all its rows in order of
      arrival as an Arrow RecordBatch. It returns a RecordBatch, a Table or None. It can access the
      state of many keys at once: use `get_many` and `update_many` of value state, `for_key` and
      `register_timers` of the handle.

    Calls come one at a time. A call that raises an exception has changed no state. Use attributes of the
    object only as caches: just the declared state survives an epoch, which may be rolled back and run
    again, here or on another host. A host with several cores has several copies of the object, for
    different keys. Each copy is called by one thread at a time.

    >>> class Count(KeyedProcessor):
    ...     output_schema = "word string, n long"
    ...
    ...     def init(self, handle):
    ...         self.seen = handle.get_value_state("seen", "n long")
    ...
    ...     def handle_input_rows(self, key, rows, timers):
    ...         (n,) = self.seen.get() or (0,)
    ...         n += sum(1 for row in rows)
    ...         self.seen.update((n,))
    ...         yield (key[0], n)
    """

    output_schema: Any = None
    """Columns of the output rows: DDL text, an Arrow schema or a Spark struct type. May be passed to
    `process` instead."""

    def init(self, handle: StateHandle) -> None:
        """Declare the state. Called once on each host, before anything else."""

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> Iterable[Any] | None:
        """Process rows of one key, in order of arrival. Return or yield output rows: tuples, dicts or
        Rows."""
        raise NotImplementedError

    def handle_expired_timer(
        self, key: tuple[Any, ...], timers: Timers, expired: ExpiredTimer
    ) -> Iterable[Any] | None:
        """Handle an expired timer of the key. Return or yield output rows, as in `handle_input_rows`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources. Called when the host stops normally, but not when it is lost."""
