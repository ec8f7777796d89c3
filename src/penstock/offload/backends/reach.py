"""From the text in a plan to the functions that it names."""

from __future__ import annotations

import json
import threading

from penstock.errors import ProtocolError
from penstock.offload.backends.port import Invoker

_lock = threading.Lock()
_invokers: dict[str, Invoker] = {}
"""A warm worker keeps them between tasks. A new run has a new text, so no mix-up."""


def invoker_at(text: str) -> Invoker:
    """The way to the functions that a `Reach.to_text` tells of: kept, or made when first asked for."""
    with _lock:
        if text not in _invokers:
            _invokers[text] = _connected(text)
        return _invokers[text]


def _connected(text: str) -> Invoker:
    facts = json.loads(text)
    kind = facts.pop("kind", None)
    if kind == "local":
        from penstock.offload.backends.local import LocalReach

        return LocalReach(**facts).connect()
    if kind == "lambda":
        from penstock.offload.backends.aws import LambdaReach

        return LambdaReach(**facts).connect()
    raise ProtocolError(f"a plan names functions of an unknown kind: {kind!r}")
