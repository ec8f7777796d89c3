"""`penstock report`: a recorded run as one HTML file, with PNG files for documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import CheckpointFolder, show


def report(
    checkpoint: CheckpointFolder,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The HTML file to write.")
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write the plots as PNG files to this folder."),
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Start of the query to report on, in milliseconds since 1970. Default: the newest.",
        ),
    ] = None,
) -> None:
    """Write a report of a query, running or ended, from its checkpoint, and print its summary."""
    from penstock.console.checkpoint.checkpoint import open_checkpoint
    from penstock.observe.recording import kept_recording
    from penstock.observe.report.html import write_report
    from penstock.observe.report.plots import save_plots
    from penstock.observe.report.summary import clock, summary

    recording = kept_recording(open_checkpoint(checkpoint)[0], start)
    files = [write_report(recording, output)]
    if png is not None:
        files += save_plots(recording, png)
    told = summary(recording)
    for heading, text in told.sentences().items():
        show(f"{heading:<7}{text}")
    for item in told.decisions:
        show(f"{clock(item.time_ms)}  {item.text}")
    show(f"Wrote {', '.join(map(str, files))}")
