"""A real browser: Debian's Chromium, driven by Playwright. It is installed where possible, else skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_HOW = "install Debian's package: apt-get install chromium"
OpenPage = Callable[..., Page]


def _chromium() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def _install() -> None:
    """Install Chromium, if this is root on Debian."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-q", *command], check=False, timeout=600)


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """Chromium. Tests that are marked for it install it if it is missing."""
    if _chromium() is None and request.node.get_closest_marker("browser"):
        _install()
    program = _chromium()
    if program is None:
        pytest.skip(f"no Chromium was found; {_HOW}, or run make test-browser as root")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page at a width and in a colour scheme. Fails if the page logs an error, or asks another
    server for anything."""
    troubles: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(f"{message.type}: {message.text}")

    def opened(url: str, width: int = 1440, scheme: str = "light") -> Page:
        height = 844 if width < 700 else 900
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda asked: troubles.append(f"failed: {asked.url}"))
        page.on("request", lambda asked: _must_be_own(asked.url, url, troubles))
        page.goto(url)
        page.wait_for_selector("body[data-ready]", timeout=30_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    # A closed page ends its events. A browser logs an answer that the page itself shows, such as a refusal.
    assert [one for one in troubles if "api/events" not in one and "status of 401" not in one] == []


def _must_be_own(asked: str, url: str, troubles: list[str]) -> None:
    if not asked.startswith(("data:", url.split("#")[0].rsplit("/", 1)[0])):
        troubles.append(f"asked another server: {asked}")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for screenshots: that of PENSTOCK_PICTURES, or a temporary one."""
    folder = os.environ.get("PENSTOCK_PICTURES")
    if folder is None:
        return tmp_path_factory.mktemp("pictures")
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)
