"""Tools of terminals."""

from __future__ import annotations

import signal

import pytest
from rich.console import Console

from penstock.console.terminal import cleaned_up


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_ctrl_c_as_it_was(error: type[BaseException]) -> None:
    before, while_closing = signal.getsignal(signal.SIGINT), []

    def fail() -> None:
        with cleaned_up(Console(quiet=True)) as resources:
            resources.callback(lambda: while_closing.append(signal.getsignal(signal.SIGINT)))
            raise error

    with pytest.raises(error):
        fail()
    assert while_closing == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) == before
