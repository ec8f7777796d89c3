"""The simulated scenarios of `penstock bench switch`, by group.

Figure numbers are those of StreamSwitch's evaluation. Parameters that the paper does not state, such as
the service rate of a host, are chosen here, with a reason. Hotspots and spikes are those of AutoFlow's
evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.model import SLA, StepId
from penstock.sim.plane import Following, Plane
from penstock_bench.switch.simulated import ONE_SECOND, Scenario, SimulatedLoad

EXCHANGE_RATE = 290.0
"""Orders per second of a host: with it `switch(0.2, unit)`, the paper's moves with a memory of peaks, uses
about as many hosts on average as in the paper, 8.40."""
SLAS = (ONE_SECOND, SLA(1000, 5000), SLA(5000, 1000))
MARGINS = (0.1, 0.2, 0.3, 0.4, 0.5)
STATICS = tuple(range(4, 17))
AUTOFLOW_FROM = (8, 12)
"""Numbers of hosts to run AutoFlow with, since it never scales."""
SWITCH = "switch(0.2)"
PAPER = "switch(0.2, unit)"
PUBLISHED = "streamswitch(0.2)"

ALERTS_MS = DELTAS_MS = (20.0, 50.0, 100.0, 200.0, 500.0)
ALPHAS = (0.5, 0.75, 1.25, 1.5)
BETAS = (0.2, 0.4, 0.6, 0.8)
WAVES = ((10_000, 90), (20_000, 90), (30_000, 90), (30_000, 80), (30_000, 70))
"""Amplitude in records per second, and period in seconds."""
DELAYS_MS = (0.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0)
SPLITS = (0.25, 0.375, 0.5, 0.625, 0.75)
"""The first step's share of the bound of 2 s."""


@dataclass(frozen=True)
class SwitchScale:
    """Size of the sweeps. Lengths are in simulated seconds."""

    day_s: float = 14_400.0
    slas: tuple[SLA, ...] = SLAS
    margins: tuple[float, ...] = MARGINS
    statics: tuple[int, ...] = STATICS
    timeline_s: int = 30
    parameters_s: float = 1_800.0
    parameters_ms: tuple[float, ...] = ALERTS_MS
    kinds_s: float = 2_400.0
    kinds_warm_s: float = 600.0
    alphas: tuple[float, ...] = ALPHAS
    betas: tuple[float, ...] = BETAS
    waves_s: float = 600.0
    waves: tuple[tuple[int, int], ...] = WAVES
    delayed: tuple[int, ...] = (10_000, 30_000)
    """Amplitudes of the waves that run with switching delays."""
    delays_ms: tuple[float, ...] = DELAYS_MS
    flow_s: float = 600.0
    flow_warm_s: float = 300.0
    splits: tuple[float, ...] = SPLITS
    seeds: int = 2
    wave_seeds: int = 6


FULL = SwitchScale()
QUICK = SwitchScale(
    day_s=120.0,
    slas=SLAS[:1],
    margins=(0.2,),
    statics=(8, 64),
    timeline_s=2,
    parameters_s=60.0,
    parameters_ms=(100.0,),
    kinds_s=60.0,
    kinds_warm_s=30.0,
    alphas=(0.5,),
    betas=(0.4,),
    waves_s=60.0,
    waves=WAVES[:1],
    delayed=(10_000,),
    delays_ms=(0.0,),
    flow_s=30.0,
    flow_warm_s=30.0,
    splits=(0.5,),
    seeds=1,
    wave_seeds=2,
)


def scenarios(scale: SwitchScale) -> list[Scenario]:
    """All scenarios, the longest first, so that both processes end at about the same time.

    >>> len(scenarios(FULL)), scenarios(FULL)[0].group
    (289, 'exchange')
    """
    return [
        *exchange(scale),
        *kinds(scale),
        *flow(scale),
        *parameters(scale),
        *waves(scale),
        *delays(scale),
        *hotspots(),
        *spikes(),
        *moving(),
    ]


def exchange(scale: SwitchScale) -> Iterator[Scenario]:
    """Figures 5, 6 and 17: a day at the exchange by policy, margin and SLA."""
    load, plane = SimulatedLoad(scale.day_s), Plane(service_rate=EXCHANGE_RATE)
    for sla in scale.slas:
        texts = [PUBLISHED, PAPER, "ds2"]
        for name in ("switch", "drs", "drs_lb"):
            texts += [f"{name}({margin:g})" for margin in scale.margins]
        for policy in texts:
            first = sla == ONE_SECOND
            shown = scale.timeline_s if first and policy == SWITCH else 0
            yield Scenario(
                *("exchange", policy, load, plane, sla), keep_slots=first, timeline_s=shown
            )
        for n in AUTOFLOW_FROM:
            yield Scenario(
                *("exchange", "autoflow", load, plane, sla), hosts=n, at_least=n, at_most=n
            )
        for n in scale.statics:
            yield Scenario(*("exchange", f"static({n})", load, plane, sla), keep_slots=True)


def parameters(scale: SwitchScale) -> Iterator[Scenario]:
    """Figures 10 and 11: the alert l and the time slot delta, on a load like that of q8.

    A host processes 5,000/s, so that the wave, from 0 to 60,000/s, needs up to 15 hosts.
    """
    plane = Plane(service_rate=5_000.0)
    wave = ("sine(30000, 30000, 600s)", "uniform")
    for seed in range(1, scale.seeds + 1):
        for delta_ms in scale.parameters_ms:
            load = SimulatedLoad(
                scale.parameters_s, (wave,), delta_ms=min(delta_ms, 100.0), seed=seed
            )
            alerts = scale.parameters_ms if delta_ms == 100.0 else (100.0,)
            for alert_ms in alerts:
                yield Scenario(
                    *("parameters", SWITCH, load, plane),
                    alert_ms=alert_ms,
                    delta_ms=delta_ms,
                    hosts=6,
                    facts=(("alert_ms", alert_ms), ("delta_ms", delta_ms)),
                    seed=seed,
                )


def kinds(scale: SwitchScale) -> Iterator[Scenario]:
    """Figures 12 and 13: hosts of two speeds, on a load like that of q2."""
    wave = ("sine(30000, 10000, 600s)", "uniform")
    for seed in range(1, scale.seeds + 1):
        load = SimulatedLoad(scale.kinds_warm_s + scale.kinds_s, (wave,), seed=seed)
        for alpha in scale.alphas:
            for beta in scale.betas:
                yield Scenario(
                    *("kinds", SWITCH, load, Plane(4_000.0, alpha, beta)),
                    hosts=10,
                    warm_up_s=scale.kinds_warm_s,
                    facts=(("alpha", alpha), ("beta", beta)),
                    keep_kinds=True,
                    seed=seed,
                )


def waves(scale: SwitchScale) -> Iterator[Scenario]:
    """Figure 14: higher and shorter waves, on a load like that of q5."""
    for amplitude, period_s in scale.waves:
        facts = (("amplitude", amplitude), ("period_s", period_s))
        yield from _waves("waves", amplitude, period_s, 300.0, facts, scale)


def delays(scale: SwitchScale) -> Iterator[Scenario]:
    """Figure 15: increasing switching delays, on the paper's wave and on a higher one."""
    for amplitude in scale.delayed:
        for delay_ms in scale.delays_ms:
            facts = (("amplitude", amplitude), ("delay_ms", delay_ms))
            yield from _waves("delays", amplitude, 90, 300.0 + delay_ms, facts, scale)


def _waves(
    group: str,
    amplitude: int,
    period_s: int,
    switch_ms: float,
    facts: tuple[tuple[str, float], ...],
    scale: SwitchScale,
) -> Iterator[Scenario]:
    wave = (f"sine(30000, {amplitude}, {period_s}s)", "uniform")
    for seed in range(1, scale.wave_seeds + 1):
        yield Scenario(
            *(group, SWITCH, SimulatedLoad(60.0 + scale.waves_s, (wave,), seed=seed)),
            Plane(service_rate=10_000.0, switch_ms=switch_ms),
            hosts=4,
            warm_up_s=60.0,
            facts=facts,
            seed=seed,
        )


def flow(scale: SwitchScale) -> Iterator[Scenario]:
    """Figure 16: sentences are split and words counted, with fixed or changing shares of the bound.

    A host processes 1,800 sentences or 9,000 words per second, so that 10 and 20 hosts are enough for
    the base rate, less the margin.
    """
    wave = ("sine(15000, 3750, 300s)", "uniform")
    words = tuple((rank + 1) ** -0.2 for rank in range(64))
    count = Following(StepId("count"), 64, 10.0, words, service_rate=9_000.0, hosts=20)
    for seed in range(1, scale.seeds + 1):
        load = SimulatedLoad(scale.flow_warm_s + scale.flow_s, (wave,), seed=seed)
        for split in (*scale.splits, None):
            yield Scenario(
                *("flow", SWITCH, load, Plane(service_rate=1_800.0), SLA(2000, 1000)),
                hosts=10,
                warm_up_s=scale.flow_warm_s,
                following=(count,),
                shares=None if split is None else (split, 1.0 - split),
                facts=(("split", split),),
                seed=seed,
            )


BALANCERS = ("autoflow(2s, 0.2)", "switch(0.2)")


def hotspots() -> Iterator[Scenario]:
    """AutoFlow's Figure 5: a hotspot that stays in place."""
    for hosts, hot, share in ((3, 1, 0.5), (3, 1, 0.8), (5, 2, 0.6), (5, 2, 0.8)):
        load = SimulatedLoad(
            120.0, ((f"steady({800 * hosts})", f"hotspot({share}, {hosts}, {hot})"),)
        )
        for policy in (f"static({hosts})", *BALANCERS):
            yield _kept("hotspots", policy, load, hosts, (("share", share),))


def spikes() -> Iterator[Scenario]:
    """AutoFlow's Figure 6: a spike on a third of the slots, for 10 or 20 seconds."""
    for length_s in (20, 10):
        rest_s = 90 - 30 - length_s
        spike = f"steps(0 for 30s, 900 for {length_s}s, 0 for {rest_s}s)"
        load = SimulatedLoad(90.0, (("steady(1500)", "uniform"), (spike, "hotspot(1, 3)")))
        for policy in ("static(3)", "autoflow(10s, 0.2)", *BALANCERS):
            yield _kept("spikes", policy, load, 3, (("length_s", length_s),))


def moving() -> Iterator[Scenario]:
    """AutoFlow's Figure 7: each host in turn has the hotspot, for 40 s."""
    for share in (0.5, 0.8):
        load = SimulatedLoad(240.0, (("steady(2400)", f"hotspot({share}, 3, 1, 40s)"),))
        for policy in ("static(3)", *BALANCERS):
            yield _kept("moving", policy, load, 3, (("share", share),))


def _kept(
    group: str, policy: str, load: SimulatedLoad, hosts: int, facts: tuple[tuple[str, float], ...]
) -> Scenario:
    return Scenario(
        *(group, policy, load, Plane(service_rate=1_000.0)),
        hosts=hosts,
        at_least=hosts,
        at_most=hosts,
        facts=(("hosts_kept", hosts), *facts),
        timeline_s=1,
        keep_loads=True,
    )
