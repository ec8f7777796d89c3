"""What a user writes for `process`: a class with logic of its own, and state and timers per key.

A PySpark `StatefulProcessor` is ported by renaming: `handleInputRows` is `handle_input_rows`,
`getValueState` is `get_value_state`, and so on. What differs:

- timers fire when an epoch opens, before its rows, and not after them; a timer is gone before its
  handler runs, so the handler may register it again;
- a processor may have timers of both kinds: say `register_timer(at, time="event")` for event time;
- an empty list given to `put` clears the state, where Spark refuses it;
- timestamps come with their time zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from penstock.state.variables.handle import ExpiredTimer, StateHandle, Timers
from penstock.state.variables.values import Row


class KeyedProcessor:
    """Base class of user logic with keyed state. Define `init` and one of

    - `handle_input_rows(key, rows, timers)`: called once per key and channel, or
    - `handle_batch(batch, timers)`: called once per slot and channel with all its rows in order of
      arrival, an Arrow RecordBatch. It returns a RecordBatch, a Table or None, and reaches the
      state of many keys at once: `get_many` and `update_many` of value state, `for_key` and
      `register_timers` of the handle.

    Calls come one at a time. A call that raises has changed nothing. State is what survives an
    epoch: attributes of the object are caches at most, since an epoch may be taken back and run
    again, here or on another host. A host with several cores has several copies of the object, for
    different keys, each of which is called by one thread at a time.

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
    """Columns of the rows that the processor gives: DDL text, an Arrow schema or a Spark struct
    type. May also be given to `process`."""

    def init(self, handle: StateHandle) -> None:
        """Declare the state. Called once on each host, before anything else."""

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Iterator[Row], timers: Timers
    ) -> Iterable[Any] | None:
        """Take in rows of one key, in order of arrival; give rows as tuples, dicts or Rows."""
        raise NotImplementedError

    def handle_expired_timer(
        self, key: tuple[Any, ...], timers: Timers, expired: ExpiredTimer
    ) -> Iterable[Any] | None:
        """A timer of the key has expired; give rows as `handle_input_rows` does."""
        raise NotImplementedError

    def close(self) -> None:
        """The host ends in good order. Not called when it is lost."""
