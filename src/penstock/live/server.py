"""A live courier's Flight service, which takes commands from the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock import codec
from penstock.errors import StaleRunError
from penstock.live.loop import CourierRun, CourierTask
from penstock.wire import orders
from penstock.wire.addresses import Listen
from penstock.wire.flight import Endpoint, Endpoints, TokenServer
from penstock.wire.live import Guides, LiveOrder, Message


class CourierServer(TokenServer):
    """Starts, halts and ends the runs of one courier. A new run ends the one before it.

    `on_stop` is called when the driver sends stop, `on_death` when a run ends as if the process had died.
    """

    def __init__(
        self,
        task: CourierTask,
        listen: Listen,
        driver: Endpoint,
        on_stop: Callable[[], None],
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(listen, task.access)
        self._task, self._driver = task, driver
        self._on_stop, self._on_death = on_stop, on_death
        self._endpoints = Endpoints(task.access)
        self._run: CourierRun | None = None
        self._newest = -1
        """Number of the newest run that was started or halted."""
        self._lock = threading.Lock()
        self.actions = {
            "begin": self._begin,
            "message": self._message,
            "guide": self._guide,
            "durable": self._durable,
            "halt": self._halt,
            "stop": self._stop,
        }
        self.takes = {
            "begin": orders.Begin,
            "message": orders.TellMessage,
            "guide": orders.TellGuides,
            "durable": orders.EpochDurable,
            "halt": orders.HaltRun,
        }

    def end(self) -> None:
        """End the run, and stop serving."""
        run = self._run
        self._end_run()
        if run is not None:
            run.join()
        self._endpoints.close()
        self.shutdown()

    def _begin(self, facts: dict[str, Any]) -> None:
        order = codec.from_plain(facts["order"], LiveOrder)
        with self._lock:
            if order.run <= self._newest:
                raise StaleRunError(
                    f"run {order.run} is outdated: this courier has already seen run {self._newest}"
                )
            self._end_run()
            self._newest = order.run
            self._run = CourierRun(self._task, order, self._driver, self._endpoints, self._on_death)
            self._run.start()

    def _message(self, facts: dict[str, Any]) -> None:
        self._run_of(facts).tell(codec.from_plain(facts["message"], Message))

    def _guide(self, facts: dict[str, Any]) -> None:
        self._run_of(facts).guide(codec.from_plain(facts["guides"], Guides))

    def _durable(self, facts: dict[str, Any]) -> None:
        self._run_of(facts).release(facts["epoch"])

    def _run_of(self, facts: dict[str, Any]) -> CourierRun:
        run = self._run
        if run is None or run.order.run != facts["run"]:
            raise StaleRunError(f"run {facts['run']} is not the current run of this courier")
        return run

    def _halt(self, facts: dict[str, Any]) -> None:
        with self._lock:
            if facts["run"] >= self._newest:
                self._newest = facts["run"]
                self._end_run()

    def _stop(self, facts: dict[str, Any]) -> None:
        self._on_stop()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.halt()
            self._run = None
