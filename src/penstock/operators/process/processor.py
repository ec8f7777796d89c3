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

from collections.abc import Iterable
from typing import Any, Self

from penstock.state.variables.handle import ExpiredTimer, StateHandle, Timers
from penstock.state.variables.values import Rows


class KeyedProcessor:
    """Base class of user code with keyed state. Define `init` and one of these methods:

    - `handle_input_rows(key, rows, timers)` is called once per key and channel.
    - `handle_batch(batch, timers)` is called with the rows of many keys as an Arrow RecordBatch, and with
      all rows that a channel has for these keys. Rows of a key are in order of arrival. It returns a
      RecordBatch, a Table or None. It can access the state of many keys at once: use `get_many` and
      `update_many` of value state, `for_key`, `register_timers` and `delete_timers` of the handle.

    `@compiled` makes `handle_input_rows` and `handle_expired_timer` many times as fast, if they use only
    value state, timers and numbers.

    Calls come one at a time. A call that raises an exception has changed no state. Use attributes of the
    object only as caches: just the declared state survives an epoch, which may be rolled back and run
    again, here or on another host. A host with several cores has several copies of the object, for
    different keys. Each copy is called by one thread at a time.

    A processor that also defines `merge` can be run in parts: for a hot key, couriers call its handler on
    their own rows, and burst workers do in a burst. Each begins with no state, and the host merges theirs
    into its own. See `merge` for what such a processor may do.

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
        """Declare the state. Called once on each host, before anything else; with `merge`, twice, and also in
        couriers and burst workers."""

    def handle_input_rows(
        self, key: tuple[Any, ...], rows: Rows, timers: Timers
    ) -> Iterable[Any] | None:
        """Process rows of one key, in order of arrival. Return or yield output rows: tuples, dicts or
        Rows."""
        raise NotImplementedError

    def handle_expired_timer(
        self, key: tuple[Any, ...], timers: Timers, expired: ExpiredTimer
    ) -> Iterable[Any] | None:
        """Handle an expired timer of the key. Return or yield output rows, as in `handle_input_rows`."""
        raise NotImplementedError

    def merge(self, other: Self) -> None:
        """Merge a partial state of the current key into this one. Define it if the order of rows does not
        matter, and if handling rows in parts and merging gives the same state as handling them all.

        `other` is a copy of this processor. Its variables, as in `other.seen.get()`, have the state that
        its handler made of some rows, beginning with none. Change `self` only. The state of `self` may be
        empty. Timers that `other` has registered are registered here before the call.

        The handler of such a processor must not emit rows, since it may know only a part of the state. Emit
        in `handle_merged`, or from timers. A timer that the handler deletes is one that it has registered
        itself. A TTL begins again when `merge` updates the state. An error in `merge` fails the query.
        """
        raise NotImplementedError

    def handle_merged(self, key: tuple[Any, ...], timers: Timers) -> Iterable[Any] | None:
        """Emit rows of a processor with `merge`. Called on the host at the end of an epoch (live: of a
        round), once for each key whose state has changed. Return or yield rows, as in
        `handle_input_rows`."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources. Called when the host stops normally, but not when it is lost."""
