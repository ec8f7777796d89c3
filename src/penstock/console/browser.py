"""Opens a dashboard in the user's browser, without its token in a command line."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={address}">
<title>Penstock</title>
</head>
<body><a href="{address}">To the dashboard</a></body>
</html>
"""


def whole_address(url: str, token: str) -> str:
    """The address of a dashboard with its control token, if there is one.

    >>> whole_address("http://127.0.0.1:80/", "secret"), whole_address("http://127.0.0.1:80/", "")
    ('http://127.0.0.1:80/#token=secret', 'http://127.0.0.1:80/')
    """
    return f"{url}#token={token}" if token else url


@contextmanager
def opened(url: str, token: str) -> Iterator[None]:
    """Open a dashboard in a browser. With a token, the browser gets a file that leads to the address, until
    the block ends: all users of a machine can read command lines, and only this user the file."""
    if not token:
        webbrowser.open(url)
        yield
        return
    with tempfile.TemporaryDirectory(prefix="penstock-open-") as folder:
        file = Path(folder, "dashboard.html")
        private = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(private, "w", encoding="utf-8") as page:
            page.write(_PAGE.format(address=html.escape(whole_address(url, token))))
        webbrowser.open(file.as_uri())
        yield
