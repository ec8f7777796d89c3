"""What Penstock's own commands share on a terminal: saying what they do, and a clean end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console


@contextmanager
def telling(console: Console) -> Iterator[Callable[[str], None]]:
    """A way to say what is being done: with a spinner on a terminal, line by line elsewhere."""
    if not console.is_terminal:
        yield lambda text: console.print(f"{text} ...")
        return
    with console.status("") as status:
        yield status.update


@contextmanager
def cleaned_up(console: Console) -> Iterator[ExitStack]:
    """What is opened inside is closed at the end, which takes seconds; no Ctrl-C cuts it short."""
    with ExitStack() as resources:
        try:
            yield resources
        except KeyboardInterrupt:
            console.print("\nStopping")
            raise
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
