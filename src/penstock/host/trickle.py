"""Background fetching of slots: at full speed while rows wait for them, otherwise as the load allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.faults import point
from penstock.host.fetch import Fetcher
from penstock.host.holdings import Holdings
from penstock.host.load import Load
from penstock.host.residence import Wanted
from penstock.state.table.table import KEY

_POLL_S = 0.5
"""Seconds between checks for wanted slots."""
_AFTER_FAILURE_S = 0.5
"""Seconds before a retry after an error."""
_PATIENCE_S = 5.0
"""Seconds that an ending host waits for the piece that is being fetched."""


class Trickle:
    """A thread that fetches the slots that a host wants, one after another.

    It rests after each piece that no row waits for, the longer the higher the `load` is. It calls `brought`
    after each slot, without holding the lock.
    """

    def __init__(
        self,
        holdings: Holdings,
        arrived: threading.Condition,
        fetcher: Fetcher,
        load: Load,
        where: dict[str, str],
        brought: Callable[[], None],
    ) -> None:
        self._brought = brought
        self._holdings, self._arrived, self._fetcher = holdings, arrived, fetcher
        self._load, self._where = load, where
        self.mb_s = 0.0
        """Most megabytes per second for slots that no row waits for."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trickle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        with self._arrived:
            self._arrived.notify_all()
        self._thread.join(_PATIENCE_S)

    def _work(self) -> None:
        while not self._ended.is_set():
            with self._arrived:
                wanted = self._holdings.wanted()
                if wanted is None:
                    self._arrived.wait(_POLL_S)
                    continue
            try:
                self._bring(wanted)
                self._fetcher.trouble = None
            except Exception as failed:
                # Rows that wait for the slot fail with this error; others fetch their keys themselves.
                error = failed if isinstance(failed, PenstockError) else PenstockError(repr(failed))
                with self._arrived:
                    self._fetcher.trouble = error
                    self._arrived.notify_all()
                self._ended.wait(_AFTER_FAILURE_S)

    def _bring(self, wanted: Wanted) -> None:
        codec = self._holdings.operator.table.codec
        began = piece_began = time.monotonic()
        brought = 0
        for rows in self._fetcher.slot(wanted):
            point("host.trickle", **self._where)
            keys = codec.from_storage(rows.column(KEY))
            with self._arrived:
                point("host.install", **self._where)
                if not self._holdings.install(wanted, keys, rows):
                    return
                waited_for = bool(self._holdings.residence.whole[wanted.slot])
            brought += rows.get_total_buffer_size()
            if not waited_for and self.mb_s > 0:
                now = time.monotonic()
                capped = began + brought / (self.mb_s * 1e6) - now
                if self._ended.wait(max(0.0, capped, self._load.rest_s(now - piece_began))):
                    return
            piece_began = time.monotonic()
        with self._arrived:
            self._holdings.complete_slot(wanted)
            self._arrived.notify_all()
        self._brought()
