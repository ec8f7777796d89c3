"""The life of a query: its own thread starts hosts, runs epochs to the end, and leaves nothing behind."""

from __future__ import annotations

import atexit
import os
import shutil
import threading
import weakref
from typing import Literal

from pyspark.util import InheritableThread

from penstock.faults import arm
from penstock.spark.parts import Parts

State = Literal["starting", "running", "stopped", "finished", "failed"]

_active: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for one in list(_active):
        one.stop()


class Lifecycle:
    """Runs the parts of one query, once. Safe to use from any thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.state: State = "starting"
        self.error: BaseException | None = None
        """Why the query failed, if it did."""
        self.done = threading.Event()
        self._driver = InheritableThread(
            target=self._drive, name=f"penstock-{parts.run_id}", daemon=True
        )

    def launch(self) -> None:
        """Begin. Returns at once."""
        _active.add(self)
        self._driver.start()

    def stop(self) -> None:
        """End the query after the epoch under way, and every host with it. Returns when it is done."""
        self._parts.stopping.set()
        if threading.current_thread() is not self._driver:
            self.done.wait()

    def _drive(self) -> None:
        parts = self._parts
        epochs = parts.epochs
        try:
            self._start_up()
            self.state = "running"
            if parts.start.source.isStreaming:
                epochs.stream()
            else:
                epochs.run_bounded()
            self.state = "stopped" if parts.stopping.is_set() else "finished"
        except BaseException as failed:
            self.error = epochs.error or failed
        finally:
            self.error = self.error or epochs.error
            if self.error is not None:
                self.state = "failed"
            self._clean_up()
            self.done.set()
            _active.discard(self)

    def _start_up(self) -> None:
        parts = self._parts
        arm(parts.start.settings.faults)
        if parts.keeper is not None and parts.helps:
            parts.keeper.start()
        parts.bill.note()
        parts.relocation.start_hosts()
        parts.store.write_control(
            {"location": parts.registry.location, "token": parts.token, "pid": os.getpid()}
        )

    def _clean_up(self) -> None:
        parts = self._parts
        if parts.keeper is not None:
            parts.keeper.stop()
        parts.bill.end()
        try:
            parts.runner.stop()
            parts.journal.stop()
            parts.events.stop()
            parts.fleet.stop()
            parts.registry.shutdown()
            parts.store.remove_control()
        except Exception as failed:
            self.error = self.error or failed
        arm(())
        if parts.start.temporary:
            shutil.rmtree(parts.start.checkpoint, ignore_errors=True)
