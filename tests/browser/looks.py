"""What a browser shows of the dashboard."""

from __future__ import annotations

import re

from playwright.sync_api import Page

CHARTS = ("latency", "input", "hosts", "success", "epochs", "state", "moves", "money")
_INK = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 120) seen.add(data.slice(at, at + 3).join());
  }
  return seen.size;
}"""


def colours_drawn(page: Page) -> dict[str, int]:
    """Chart -> number of distinct colours on its canvas."""
    return {chart: page.eval_on_selector(f"#chart-{chart} canvas", _INK) for chart in CHARTS}


def owner_of(page: Page, slot: int) -> str:
    """The host in whose row a slot is."""
    cell = page.locator(f"#map .slot[data-slot='{slot}']").first
    return (
        cell.locator("xpath=ancestor::div[contains(@class, 'host')][1]")
        .locator(".who b")
        .inner_text()
    )


def wider_than_the_screen(page: Page) -> list[str]:
    """Elements that stick out to the right of the page."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *, footer")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .filter((one) => !one.closest(".u-wrap, .note, .hidden"))
        .map((one) => `${one.tagName}.${one.className}#${one.id}`)"""
    )
    return found


def seconds_of(text: str) -> float:
    """A duration as the page writes it, in seconds."""
    match = re.match(r"([\d.]+) (ms|s)", text)
    assert match is not None, text
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
