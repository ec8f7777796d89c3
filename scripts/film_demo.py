"""Film the dashboard while the demo runs: `.venv/bin/python scripts/film_demo.py docs/images/burst.webp`.

It takes a picture of the page every second, from the start of the story to its end, and makes one
animated file of them. It needs Chromium and Playwright, as `make test-browser` does, and Pillow.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

_SIZE = {"width": 1280, "height": 760}
_WIDTH = 800
"""Width of the film in pixels."""
_FRAME_MS, _EVERY_S = 180, 1.0
_URL = re.compile(r"http://[\w.:\[\]-]+/?")


def main(target: str, seconds: str = "90") -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "penstock",
            "demo",
            "--no-open",
            "--output",
            f"{folder}/demo",
        ]
        demo = subprocess.Popen(
            [*command, "--seconds", seconds],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: list[str] = []
        assert demo.stdout is not None
        reader = threading.Thread(target=_read, args=(demo.stdout, lines), daemon=True)
        reader.start()
        while not (found := [m[0] for line in lines if (m := _URL.search(line))]):
            if demo.poll() is not None:
                raise SystemExit("\n".join(lines))
            time.sleep(0.1)
        frames = _filmed(found[0], demo)
        reader.join()
        print(f"The demo ended with {demo.returncode}; {len(frames)} frames.")
    first, *rest = frames
    options = {"append_images": rest, "duration": _FRAME_MS, "loop": 0, "save_all": True}
    first.save(target, quality=55, method=6, minimize_size=True, **options)
    print(f"{target}: {Path(target).stat().st_size / 1e6:.2f} MB")


def _read(stream: io.TextIOBase, lines: list[str]) -> None:
    for line in stream:
        print(line, end="", flush=True)
        lines.append(line)


def _filmed(url: str, demo: subprocess.Popen[str]) -> list[Image.Image]:
    """A picture of the page for each second until the demo ends."""
    frames = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        page.goto(url)
        while demo.poll() is None:
            began = time.monotonic()
            try:
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            except Exception:
                break  # the demo has ended meanwhile
            frames.append(picture.resize((_WIDTH, _WIDTH * _SIZE["height"] // _SIZE["width"])))
            time.sleep(max(0.0, _EVERY_S - (time.monotonic() - began)))
        browser.close()
    return frames


if __name__ == "__main__":
    main(*sys.argv[1:])
