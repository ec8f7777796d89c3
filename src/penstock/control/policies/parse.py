"""Policies by name: the text that users write, and the policy object that it stands for.

    switch                  projects latencies, scales and balances (StreamSwitch)
    switch(0.2)             with a safety margin of 20 % of every host's service rate
    switch(0.2, unit)       one treatment per decision
    streamswitch(0.2)       StreamSwitch as published: also without memory, and with its own projection
    static(4)               always 4 hosts
    autoflow                moves slots from the busiest host to the idlest, never scales (AutoFlow)
    autoflow(5s, 0.2)       by arrivals in windows of 5 s, where the two hosts differ by 20 % or more
    drs, drs(0.2)           the number of hosts that an M/M/k queue needs (DRS), with a safety margin
    drs_lb, drs_lb(0.2)     the same, and balances where it need not scale
    ds2, ds2(0.7)           the number of hosts that are busy 70 % of the time (DS2, Flink's autoscaler)

A user may also pass a policy object or class.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.call_text import made_of
from penstock.control.treat.decision import Policy
from penstock.errors import SettingError
from penstock.model import milliseconds

Parsed = tuple[Policy, float | None]
"""A policy, and its safety margin; None if the text names no margin."""

_FORMS = (
    "switch", "switch(0.2)", "switch(0.2, unit)", "streamswitch(0.2)", "static(4)", "autoflow",
    "autoflow(5s, 0.2)",
    "drs(0.2)", "drs_lb(0.2)", "ds2", "ds2(0.7)",
)  # fmt: skip
_HINT = f"use {', '.join(_FORMS)}, or an object with a method decide(vitals, bounds)"


def parse(text: str | Policy | type[Policy]) -> Parsed:
    """A new policy object for a text, and the margin for `Bounds` if the text names one.

    A policy object is returned as it is. A class is called without arguments. Each step has its own policy,
    so a class is the better choice for a flow with several keyed steps.

    >>> policy, margin = parse("drs_lb(0.3)")
    >>> str(policy), margin
    ('drs_lb', 0.3)
    >>> parse("magic")
    Traceback (most recent call last):
    ...
    penstock.errors.SettingError: unknown policy 'magic'. What to do: use switch, switch(0.2), \
switch(0.2, unit), streamswitch(0.2), static(4), autoflow, autoflow(5s, 0.2), drs(0.2), drs_lb(0.2), \
ds2, ds2(0.7), or an object with a method decide(vitals, bounds)
    """
    if not isinstance(text, str):
        if not callable(getattr(text, "decide", None)):
            raise SettingError(f"unknown policy {text!r}", hint=_HINT)
        return (text() if isinstance(text, type) else text), None
    return made_of(text, "policy", _MAKERS, _HINT)


# Policies are imported where they are created. Some import numba, which is slow, and not needed to only
# declare a flow.


def _switch(*words: str) -> Parsed:
    from penstock.control.policies.switch import Switch

    unit = words[-1:] == ("unit",)
    margin = words[:-1] if unit else words
    if len(margin) > 1:
        raise SettingError(f"it has {len(margin)} margins, {' and '.join(margin)}, instead of one")
    return Switch(unit=unit), _margin(*margin)


def _streamswitch(margin: str | None = None) -> Parsed:
    from penstock.control.policies.switch import Switch

    return Switch.published(), _margin(margin)


def _static(hosts: str) -> Parsed:
    from penstock.control.policies.static import Static

    return Static(int(hosts)), None


def _autoflow(window: str = "5s", factor: str = "0.2") -> Parsed:
    from penstock.control.policies.autoflow import AutoFlow

    return AutoFlow(milliseconds(window), float(factor)), None


def _drs(margin: str | None = None) -> Parsed:
    from penstock.control.policies.drs import Drs

    return Drs(), _margin(margin)


def _drs_lb(margin: str | None = None) -> Parsed:
    from penstock.control.policies.drs import DrsLb

    return DrsLb(), _margin(margin)


def _ds2(target: str = "0.7") -> Parsed:
    from penstock.control.policies.ds2 import Ds2

    return Ds2(float(target)), None


def _margin(text: str | None = None) -> float | None:
    margin = None if text is None else float(text)
    if margin is not None and not 0 <= margin < 1:
        raise SettingError(f"the margin is {margin:g}, but must be at least 0 and below 1")
    return margin


_MAKERS: dict[str, Callable[..., Parsed]] = {
    "switch": _switch,
    "streamswitch": _streamswitch,
    "static": _static,
    "autoflow": _autoflow,
    "drs": _drs,
    "drs_lb": _drs_lb,
    "ds2": _ds2,
}
