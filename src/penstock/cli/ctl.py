"""`penstock ctl`: look at a running query, and steer it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import AsJson, CheckpointFolder, StepName, show, wide_console

ctl = typer.Typer(help="Look at a running query, and steer it.", no_args_is_help=True)


@ctl.command("status")
def ctl_status(checkpoint: CheckpointFolder, as_json: AsJson = False) -> None:
    """Show a running query: its hosts, their slots and load, and moves of state."""
    from penstock.console.running import view
    from penstock.console.running.query import RunningQuery

    answer = RunningQuery(checkpoint).status()
    show(view.as_json(answer) if as_json else view.draw_status(answer))


@ctl.command("watch")
def ctl_watch(
    checkpoint: CheckpointFolder,
    once: Annotated[bool, typer.Option("--once", help="Show the page once, and exit.")] = False,
) -> None:
    """Watch a running query: latency against its SLA, hosts, hot keys and decisions."""
    from penstock.console.running.watch import watch

    watch(checkpoint, wide_console(), once)


@ctl.command("journal")
def ctl_journal(
    checkpoint: CheckpointFolder,
    last: Annotated[int, typer.Option(min=1, metavar="N", help="Number of entries.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print new entries as they come, until Ctrl-C.")
    ] = False,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Print the figures of each host below a decision.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per entry.")
    ] = False,
) -> None:
    """Show autoscaling decisions, their reasons and results. The query need not be running."""
    from itertools import chain

    from penstock import codec
    from penstock.console.running.query import followed, journal

    newest = journal(checkpoint, last)
    if not newest and not follow and not as_json:
        typer.echo("Nothing was decided yet.")
    for entry in chain(newest, followed(checkpoint, newest) if follow else ()):
        if as_json:
            typer.echo(codec.text(entry))
        else:
            typer.echo("\n".join(entry.lines() if hosts else [entry.line()]))


@ctl.command("steer")
def ctl_steer(
    checkpoint: CheckpointFolder,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="The SLA's latency, such as 1s.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="The SLA's window, such as 1s.")
    ] = None,
    alert: Annotated[
        str | None, typer.Option(metavar="TIME", help="Latency above which a step may need help.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of a host's service rate to keep in reserve, such as 0.2."
        ),
    ] = None,
    at_least: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Minimum number of hosts per step.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum number of hosts per step.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Autoscaling policy, such as switch(0.2) or static(4)."
        ),
    ] = None,
    dry_run: Annotated[
        bool | None,
        typer.Option("--dry-run/--no-dry-run", help="Only record decisions, or carry them out."),
    ] = None,
    functions_at_most: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Maximum number of functions per step."),
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time that functions carry a burst before hosts are added."
        ),
    ] = None,
    p99: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Bound on the 99th percentile of latencies."),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Change the bounds on this step, not on the whole flow."),
    ] = None,
) -> None:
    """Change the SLA and autoscaling settings of a running query, and show them. Without options: show."""
    from penstock.console.running import view
    from penstock.console.running.query import RunningQuery
    from penstock.control.elastic import Steering

    steering = Steering(
        *(latency, window, policy, at_least, at_most, margin, alert, dry_run),
        functions_at_most=functions_at_most,
        patience=patience,
        p99=p99,
        step=step,
    )
    show(view.draw_control(RunningQuery(checkpoint).steer(steering)))


@ctl.command("move")
def ctl_move(
    checkpoint: CheckpointFolder,
    to: Annotated[
        str, typer.Option(metavar="HOST", help="Host to move them to, as shown by ctl status.")
    ],
    slots: Annotated[
        str, typer.Option(metavar="SLOTS", help="Slots to move, such as 0-15,20.")
    ] = "",
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Move this key, not all of its slot; with several key columns, 1,2. May be repeated.",
        ),
    ] = None,
    step: StepName = None,
) -> None:
    """Move slots, or single keys, to a host, from the next epoch on."""
    from penstock.console.running.query import RunningQuery
    from penstock.plan.slots import slots_to_text

    step, moved = RunningQuery(checkpoint).move(slots, to, step, key or ())
    what = [f"slots {slots_to_text(moved)}"] * bool(moved)
    what += [f"key{'s' * (len(key) > 1)} {'; '.join(key)}"] if key else []
    typer.echo(f"{' and '.join(what)} of {step} move to {to} from the next epoch on")


@ctl.command("scale")
def ctl_scale(
    checkpoint: CheckpointFolder,
    hosts: Annotated[int, typer.Option(min=1, metavar="N", help="Number of hosts.")],
    step: StepName = None,
) -> None:
    """Scale a step to this number of hosts. Slots move when new hosts are up."""
    from penstock.console.running.query import RunningQuery

    step = RunningQuery(checkpoint).scale(hosts, step)
    typer.echo(f"{step} goes to {hosts} {'host' if hosts == 1 else 'hosts'}")


@ctl.command("migration")
def ctl_migration(
    checkpoint: CheckpointFolder,
    strategy: Annotated[
        str,
        typer.Argument(
            metavar="STRATEGY",
            help="lazy, lazy(16) for at most 16 MB/s, all_at_once, batched(8), fluid, pause.",
        ),
    ],
) -> None:
    """Choose how state follows slots that move to another host."""
    from penstock.console.running.query import RunningQuery

    typer.echo(f"migration is now {RunningQuery(checkpoint).migrate_by(strategy)}")
