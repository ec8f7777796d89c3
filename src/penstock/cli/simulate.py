"""`penstock simulate`: policies on a workload or a trace, over a simulated data plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import show, wide_console
from penstock.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.control.journal.entry import Entry
    from penstock.control.treat.decision import Bounds
    from penstock.sim.outcome import FlowOutcome, Outcome
    from penstock.sim.plane import Plane
    from penstock.sim.workload import Workload

_TELL_S = 0.1
"""Seconds between updates of the progress bar."""


def simulate(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            help="exchange, sine, burst, ramp, steady, hotspot, wordcount, or a shape such as "
            "'sine(30000, 10000, 600s)'.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="CSV or Parquet file with the load: columns time_ms, time or arrival; slot or key; count.",
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Replay the recorded events of the newest start of a query, and its decisions; with "
            "--policy, show what that policy would have decided.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY", help="Policy, as in elastic(policy=...). May be repeated, to compare."
        ),
    ] = None,
    latency: Annotated[str, typer.Option(help="The SLA's average latency.")] = "1s",
    window: Annotated[str, typer.Option(help="The SLA's window.")] = "1s",
    alert: Annotated[
        str | None,
        typer.Option(help="Latency above which a step may need help. Default: half of --latency."),
    ] = None,
    delta: Annotated[str, typer.Option(help="Time between looks at the load.")] = "100ms",
    slots: Annotated[int, typer.Option(min=1, metavar="N", help="Number of slots.")] = 64,
    skew: Annotated[
        str | None,
        typer.Option(help="Skew of the slots: uniform, zipf(0.8), hotspot(0.5, 3, 1, 60s)."),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(help="Simulated time. Default: a day of the exchange, or 20 minutes."),
    ] = None,
    warm_up: Annotated[
        str, typer.Option(help="Time at the beginning that the figures leave out.")
    ] = "0s",
    hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of hosts at the beginning.")
    ] = None,
    at_least: Annotated[int, typer.Option(min=1, metavar="N", help="Minimum number of hosts.")] = 1,
    at_most: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of hosts.")] = 32,
    service_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Records per second that a host can process.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="continuous or epochs. Default: epochs if --functions."),
    ] = None,
    epoch_cost: Annotated[str, typer.Option(help="Duration of an empty epoch.")] = "250ms",
    start: Annotated[str, typer.Option(help="Time until a new host is up.")] = "1s",
    functions: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Maximum number of functions that carry bursts; needs epochs."
        ),
    ] = None,
    switch: Annotated[
        str, typer.Option(help="Pause of a host that gives or gets slots.")
    ] = "300ms",
    alpha: Annotated[
        float, typer.Option(help="Speed of the faster hosts, as a multiple of the others'.")
    ] = 1.0,
    beta: Annotated[float, typer.Option(help="Share of the faster hosts, from 0 to 1.")] = 0.0,
    seed: Annotated[
        int,
        typer.Option(metavar="S", help="Seed: the same seed gives the same run."),
    ] = 1,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the journal of decisions to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try policies on a simulated step or a recorded run, without Spark: hours of load in seconds."""
    from pathlib import Path

    from rich.console import Console

    from penstock import codec
    from penstock.control.treat.decision import Bounds
    from penstock.model import SLA, milliseconds
    from penstock.sim.burst_workers import WorkerPlane
    from penstock.sim.plane import Plane
    from penstock.sim.trace import Trace
    from penstock.sim.workload import Workload
    from penstock.sim.workload import workload as find

    loads = {"a workload": workload, "a trace": trace, "a replay": replay}
    chosen = [name for name, load in loads.items() if load is not None]
    if len(chosen) > 1:
        raise SettingError(f"simulate got {' and '.join(chosen)}", hint="use one of them")
    if replay is not None:
        _replay(replay, policy or [], as_json)
        return
    if engine is None:
        engine = "continuous" if functions is None else "epochs"
    if journal is not None and not Path(journal).parent.is_dir():
        raise SettingError(
            f"cannot write {journal}: no such folder", hint="create the folder first"
        )
    bounds = Bounds(
        SLA(milliseconds(latency), milliseconds(window)),
        None if alert is None else float(milliseconds(alert)),
        at_least=at_least,
        at_most=at_most,
    )
    delta_ms = milliseconds(delta)
    # Longer time slots are for control only: the simulation stays fine-grained.
    fine_ms = float(min(delta_ms, 100) if delta_ms % 100 == 0 else delta_ms)
    seconds = None if duration is None else milliseconds(duration) / 1000
    if trace is not None:
        read = Trace.from_file(trace, slots, fine_ms)
        load = Workload(read if seconds is None else read.cut(to_s=seconds), 1000.0)
    else:
        load = find(workload or "exchange", slots, fine_ms, seconds, skew, seed)
    plane = Plane(
        service_rate=load.service_rate if service_rate is None else service_rate,
        alpha=alpha,
        beta=beta,
        start_host_ms=milliseconds(start),
        switch_ms=milliseconds(switch),
        engine=engine,  # type: ignore[arg-type]  # Plane checks it
        epoch_cost_ms=milliseconds(epoch_cost),
        burst_workers=None if functions is None else WorkerPlane(at_most=functions),
        revises=functions is not None,
    )
    console = Console(highlight=False)
    runs: list[dict[str, Any]] = []
    lines: list[str] = []
    for text in policy or ["switch"]:
        with _progress(console, text, load.trace.duration_ms) as tell:
            outcome, took_s = _run(
                *(load, text, bounds, plane, hosts),
                delta_ms=float(delta_ms),
                seed=seed,
                warm_up_ms=milliseconds(warm_up),
                tell=tell,
            )
        runs.append({"policy": text, "seconds": round(took_s, 2)} | outcome.figures())
        lines += [f"# {text}", *_journal(outcome)]
    if journal is not None:
        Path(journal).write_text("\n".join(lines) + "\n")
    if as_json:
        typer.echo(codec.text(runs, indent=2))
    else:
        wide_console().print(_table(runs))


def _replay(checkpoint: str, policies: list[str], as_json: bool) -> None:
    """Print the journal that recorded events lead to, or the decisions of other policies on them."""
    from penstock import codec
    from penstock.console.checkpoint.checkpoint import open_checkpoint
    from penstock.sim.replay import difference, recorded, replayed

    run = recorded(open_checkpoint(checkpoint)[0])
    if policies:
        tried = {policy: replayed(run, policy) for policy in policies}
        _compare({"recorded": run.journal, **tried}, as_json)
        return
    journal = replayed(run)
    differs = difference(run.journal, journal)
    if as_json:
        facts = {"events": len(run.events), "journal": journal, "equal": differs is None}
        typer.echo(codec.text(facts | {"difference": differs}, indent=2))
    else:
        for entry in journal:
            typer.echo(entry.line())
        typer.echo(f"{len(journal):,} entries from {len(run.events):,} events")
        if differs is None:
            typer.echo("The replay is identical to the recorded journal.")
        else:
            typer.echo(f"Entry {differs.number} differs from the recorded journal:")
            for name, other in (("recorded", differs.recorded), ("replayed", differs.replayed)):
                typer.echo(f"{name}: {'nothing' if other is None else other.line()}")
    if differs is not None:
        raise typer.Exit(1)


def _compare(journals: dict[str, Sequence[Entry]], as_json: bool) -> None:
    """Print the decisions of policies side by side."""
    from collections import Counter

    from rich.table import Table

    from penstock import codec
    from penstock.control.journal.entry import Entry
    from penstock.sim.replay import wanted

    by_policy = {name: wanted(journal) for name, journal in journals.items()}
    if as_json:
        facts = [{"policy": name, "decisions": decided} for name, decided in by_policy.items()]
        typer.echo(codec.text(facts, indent=2))
        return
    kinds = ("scale_out", "scale_in", "balance")
    table = Table("time", "step", *by_policy, box=None, header_style="bold", pad_edge=False)
    by_place = {
        name: {(one.time_ms, one.step): "\n".join(one.treatments) for one in decided}
        for name, decided in by_policy.items()
    }
    for time_ms, step in sorted({place for places in by_place.values() for place in places}):
        texts = [places.get((time_ms, step), "-") for places in by_place.values()]
        table.add_row(Entry(time_ms, None, step, "decided", "").when, step, *texts)
    counts = {
        name: Counter(kind for one in decided for kind in one.kinds)
        for name, decided in by_policy.items()
    }
    for kind in kinds:
        table.add_row(kind.replace("_", " "), "all", *(f"{n[kind]:,}" for n in counts.values()))
    show(table)


def _run(
    load: Workload, policy: str, bounds: Bounds, plane: Plane, hosts: int | None, **settings: Any
) -> tuple[Outcome | FlowOutcome, float]:
    """The outcome of one policy on the workload, and the seconds that the simulation took."""
    import time

    from penstock.sim.run import simulate, simulate_flow

    began = time.monotonic()
    settings |= {"step": load.step}
    outcome: Outcome | FlowOutcome
    if load.following:
        hosts = load.hosts if hosts is None else hosts
        arguments = load.trace, load.following, policy, bounds, plane
        outcome = simulate_flow(*arguments, hosts=hosts, **settings)
    else:
        outcome = simulate(load.trace, policy, bounds, plane, hosts=hosts, **settings)
    return outcome, time.monotonic() - began


def _journal(outcome: Outcome | FlowOutcome) -> list[str]:
    from penstock.sim.outcome import FlowOutcome

    steps = list(outcome.steps.values()) if isinstance(outcome, FlowOutcome) else [outcome]
    entries = sorted((e for step in steps for e in step.journal), key=lambda e: e.time_ms)
    return [line for entry in entries for line in entry.lines()]


def _table(runs: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("policy")
    names = ["success", "worst slot", "hosts", "scale out", "scale in", "balance", "decide", "USD"]
    with_functions = any("functions" in step for run in runs for step in _steps_of(run).values())
    for name in [*names, *(["functions", "their rows"] if with_functions else [])]:
        table.add_column(name, justify="right")
    for run in runs:
        steps = run.get("steps", {})
        if steps:
            table.add_row(run["policy"], f"{run['success']:.2%}", "", f"{run['hosts']:.2f}")
        for name, step in _steps_of(run).items():
            treatments, used = step["treatments"], step.get("functions")
            table.add_row(
                f"  {name}, {run['shares'][name]:.0%} of the bound" if steps else name,
                f"{step['success']:.2%}",
                f"{step['success_of_worst_slot']:.2%}",
                f"{step['hosts']:.2f}",
                *(f"{treatments[kind]:,}" for kind in ("scale_out", "scale_in", "balance")),
                f"{step['decide_us']:,.0f} µs" if step["decisions"] else "-",
                f"{step['money']['total']:.4f}",
                *([f"{used['most']:,}", f"{used['rows'] / step['arrived']:.1%}"] if used else []),
            )
    return table


def _steps_of(run: dict[str, Any]) -> dict[str, Any]:
    """The steps of a run by name; a single step has the name of its policy."""
    return dict(run.get("steps") or {run["policy"]: run})


@contextmanager
def _progress(console: Console, policy: str, total_ms: float) -> Iterator[Callable[[float], None]]:
    """A progress bar, on a terminal only. Yields a function of the simulated milliseconds so far."""
    import time

    from rich.progress import Progress

    if not console.is_terminal:
        yield lambda now_ms: None
        return
    with Progress(console=console, transient=True) as progress:
        task, last = progress.add_task(policy, total=total_ms), 0.0

        def update(now_ms: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _TELL_S:
                last = time.monotonic()
                progress.update(task, completed=now_ms)

        yield update
