"""`penstock ctl`: look at a running query, and steer it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import AsJson, CheckpointFolder, StepName, show, wide_console

ctl = typer.Typer(help="Look at a running query, and steer it.", no_args_is_help=True)


@ctl.command("status")
def ctl_status(checkpoint: CheckpointFolder, as_json: AsJson = False) -> None:
    """Show a running query: its hosts, their slots, how they fare, and what state moved."""
    from penstock.console.running import view
    from penstock.console.running.query import RunningQuery

    answer = RunningQuery(checkpoint).status()
    show(view.as_json(answer) if as_json else view.draw_status(answer))


@ctl.command("watch")
def ctl_watch(
    checkpoint: CheckpointFolder,
    once: Annotated[bool, typer.Option("--once", help="Show the page once, and end.")] = False,
) -> None:
    """Watch a running query: latency against its SLA, hosts, hot keys and decisions."""
    from penstock.console.running.watch import watch

    watch(checkpoint, wide_console(), once)


@ctl.command("journal")
def ctl_journal(
    checkpoint: CheckpointFolder,
    last: Annotated[int, typer.Option(min=1, metavar="N", help="How many entries.")] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new entries as they come, until Ctrl-C.")
    ] = False,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="With the figures of each host below a decision.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each.")] = False,
) -> None:
    """Show what control decided and did, and why; the query need not run any more."""
    from itertools import chain

    from penstock import codec
    from penstock.console.running.query import followed, journal

    newest = journal(checkpoint, last)
    for entry in chain(newest, followed(checkpoint, newest) if follow else ()):
        if as_json:
            typer.echo(codec.text(entry))
        else:
            typer.echo("\n".join(entry.lines() if hosts else [entry.line()]))


@ctl.command("steer")
def ctl_steer(
    checkpoint: CheckpointFolder,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="The SLA's bound, such as 1s.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="The SLA's window, such as 1s.")
    ] = None,
    alert: Annotated[
        str | None, typer.Option(metavar="TIME", help="A latency that is a sign of trouble.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="How much of a host is not counted on, such as 0.2."),
    ] = None,
    at_least: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Hosts that a step has at least.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Hosts that a step has at most.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Who decides, such as switch(0.2) or static(4)."),
    ] = None,
    dry_run: Annotated[
        bool | None,
        typer.Option("--dry-run/--no-dry-run", help="Only tell what would be done; or do it."),
    ] = None,
    functions_at_most: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Functions that a step has at most at a time."),
    ] = None,
    patience: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long functions carry a burst before hosts come."),
    ] = None,
) -> None:
    """Change what a running query keeps to; shows what is in force. Without options: only that."""
    from penstock.console.running import view
    from penstock.console.running.query import RunningQuery
    from penstock.control.elastic import Steering

    steering = Steering(
        *(latency, window, policy, at_least, at_most, margin, alert, dry_run),
        functions_at_most=functions_at_most,
        patience=patience,
    )
    show(view.draw_control(RunningQuery(checkpoint).steer(steering)))


@ctl.command("move")
def ctl_move(
    checkpoint: CheckpointFolder,
    slots: Annotated[str, typer.Option(metavar="SLOTS", help="Which slots, such as 0-15,20.")],
    to: Annotated[str, typer.Option(metavar="HOST", help="The host, as ctl status names it.")],
    step: StepName = None,
) -> None:
    """Let slots live on a host, from the next epoch on."""
    from penstock.console.running.query import RunningQuery
    from penstock.plan.slots import slots_to_text

    step, moved = RunningQuery(checkpoint).move(slots, to, step)
    typer.echo(f"slots {slots_to_text(moved)} of {step} move to {to} from the next epoch on")


@ctl.command("scale")
def ctl_scale(
    checkpoint: CheckpointFolder,
    hosts: Annotated[int, typer.Option(min=1, metavar="N", help="How many hosts.")],
    step: StepName = None,
) -> None:
    """Give a step this number of hosts; slots move when new ones are up."""
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
            help="lazy, lazy(16) for a trickle of 16 MB/s, all_at_once, batched(8), fluid, pause.",
        ),
    ],
) -> None:
    """Choose how state follows slots that change hands."""
    from penstock.console.running.query import RunningQuery

    typer.echo(f"migration is now {RunningQuery(checkpoint).migrate_by(strategy)}")
