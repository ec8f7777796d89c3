"""The sentences by which the policy of burst workers explains itself."""

from __future__ import annotations

import numpy as np

from penstock.control.diagnose.load import Flags
from penstock.control.treat.offloading import OffloadSettings
from penstock.offload.policy.observations import Observation
from penstock.offload.policy.shares import Relief

_MOST = 3
"""So many hosts are told of one by one, the busiest first."""
_ROUNDING = 0.005
UNABLE = "merging what functions give costs hosts as much as it saves them"
UNWANTED = "no functions are wanted any more"


def burst(seen: Observation, which: Flags, settings: OffloadSettings) -> list[str]:
    """Of hosts that have more than they should."""
    return _each(seen, which, f"has been above {_times(settings.high, settings.in_a_row)}")


def come(ready: int, now: int, which: Flags) -> list[str]:
    """Of burst workers that were asked for and can be used now."""
    return [f"{ready:,} functions are ready, {now:,} were in use"] if which.any() else []


def idle(seen: Observation, which: Flags, settings: OffloadSettings) -> list[str]:
    """Of hosts from which burst workers take too much."""
    return _each(seen, which, f"has been below {_times(settings.low, settings.in_a_row)}")


def over(seen: Observation, which: Flags, row: int, settings: OffloadSettings) -> list[str]:
    """Of hosts that can do without functions."""
    return _each(
        seen, which, f"would have been below {_times(settings.high, row)} without functions"
    )


def given(relief: Relief, settings: OffloadSettings) -> str:
    """What burst workers shall take now."""
    if relief.functions == 0:
        return "nothing goes to functions"
    some = relief.shares[relief.shares > 0]
    least, most = _percent(some.min()), _percent(some.max())
    part = most if least == most else f"{least} to {most}"
    slots = "1 slot" if len(some) == 1 else f"{len(some):,} slots"
    told = f"{part} of the rows of {slots} go to functions, {relief.functions:,} at a time"
    if relief.level > settings.target + _ROUNDING:
        told += f": all that can be done, it leaves a host at {_percent(relief.level)}"
    return told


def lasts(waited_ms: float, dearer: bool) -> str:
    """Why it is time for hosts."""
    why = "functions have cost more than hosts would have" if dearer else "patience is at its end"
    return f"the burst has lasted for {waited_ms / 1000:,.0f} s and {why}: time for hosts"


def _each(seen: Observation, which: Flags, what: str) -> list[str]:
    some = np.flatnonzero(which)
    some = some[np.argsort(-seen.load[some], kind="stable")]
    told = [
        f"{seen.hosts[n]} {what} (arrivals {seen.rate[n]:,.0f}/s, capacity "
        f"{seen.capacity[n]:,.0f}/s, load {_percent(seen.load[n])})"
        for n in some[:_MOST].tolist()
    ]
    if len(some) > _MOST:
        told.append(f"the same of {len(some) - _MOST:,} more")
    return told


def _times(load: float, row: int) -> str:
    return f"{_percent(load)} for {row} observations"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
