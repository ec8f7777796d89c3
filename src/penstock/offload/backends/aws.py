"""Functions on AWS Lambda, through boto3: an extra, `pip install penstock[aws]`.

The function is made beforehand, of the archive that `penstock functions package` writes; couriers
invoke it with the credentials that their executors have. What was used couriers count themselves
and tell the driver, since nobody else sees all invocations.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.faults import Fault
from penstock.offload.backends.lambda_invoker import LambdaInvoker
from penstock.offload.backends.port import FunctionFailed, Usage
from penstock.offload.backends.price import FunctionPrice

if TYPE_CHECKING:
    from penstock.plan.steps import FlowPlan

_WARM_EVERY_S = 240.0
"""Lambda keeps an idle environment for more than five minutes, as a rule."""
_WARM_HOLD_MS = 200
"""So long each is kept busy, so that as many environments are up as shall be warm."""


@dataclass(frozen=True)
class LambdaReach:
    """Which Lambda function, and where. See `functions.port.Reach`."""

    name: str
    region: str | None = None
    endpoint_url: str | None = None
    payload_limit: int = 6 * 1024 * 1024
    connections: int = 64

    def connect(self) -> LambdaInvoker:
        return LambdaInvoker(self)

    def to_text(self) -> str:
        return json.dumps({"kind": "lambda"} | asdict(self))


@dataclass(frozen=True)
class LambdaFunctions:
    """Functions on AWS Lambda. See `functions.port.Functions`.

    >>> LambdaFunctions("my-flow", "eu-central-1").reach.to_text()[:37]
    '{"kind": "lambda", "name": "my-flow",'
    """

    name: str
    """The function's name or ARN, with an alias or version if need be."""
    region: str | None = None
    """None: as boto3 finds it in its own settings."""
    endpoint_url: str | None = None
    """Another address than AWS's own, such as a private one."""
    at_most: int = 100
    """At a time. What the account allows, or has reserved for the function, is a limit beside it."""
    speed: float = 1.0
    """Relative to a host. One with 1,769 MB has a core of its own."""
    price: FunctionPrice = field(default_factory=FunctionPrice)
    payload_limit: int = 6 * 1024 * 1024
    """Bytes of a request or an answer that Lambda lets through."""
    start_ms: int = 500
    """What a cold start is taken to take: as published for Lambda with its runtime loaded before."""

    @property
    def reach(self) -> LambdaReach:
        return LambdaReach(
            self.name, self.region, self.endpoint_url, self.payload_limit, self.at_most
        )

    def start(
        self, flow: FlowPlan, run_id: str, token: str, faults: tuple[Fault, ...] = ()
    ) -> LambdaStarted:
        """Nothing is brought up: the function is there. Who may invoke it is up to AWS, not the token,
        and it is as fast as it is."""
        return LambdaStarted(self.reach, self.price)


class LambdaStarted:
    """One run's use of a Lambda function. See `functions.port.Started`."""

    def __init__(self, reach: LambdaReach, price: FunctionPrice) -> None:
        self.reach, self._price = reach, price
        self._invoker = reach.connect()
        self._lock = threading.Lock()
        self._noted = Usage()
        self._warm = 0
        self._changed, self._ended = threading.Event(), False
        self._keeper = threading.Thread(target=self._keep, name="penstock-warm", daemon=True)
        self._keeper.start()

    def warm(self, count: int) -> None:
        """By invoking so many at once, now and every few minutes."""
        if count != self._warm:
            self._warm = count
            self._changed.set()

    def note(self, usage: Usage) -> None:
        with self._lock:
            self._noted += usage

    def used(self) -> Usage:
        self.note(self._invoker.taken())
        noted = self._noted
        return replace(noted, money=self._price.money(noted.invocations, noted.seconds))

    def stop(self) -> None:
        self._ended = True
        self._changed.set()
        self._keeper.join()

    def _keep(self) -> None:
        while not self._ended:
            self._changed.wait(_WARM_EVERY_S)
            self._changed.clear()
            if self._warm and not self._ended:
                with ThreadPoolExecutor(self._warm) as threads:
                    list(threads.map(self._touch, range(self._warm)))

    def _touch(self, _: int) -> None:
        with suppress(FunctionFailed):
            self._invoker.ask({"warm": _WARM_HOLD_MS}, timeout_ms=30_000)
