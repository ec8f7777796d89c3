"""Checks of the documentation: links, anchors and commands exist, Python compiles, lines fit a screen.

`tests/spark/test_pages.py` and `tests/kafka/test_pages.py` run the Python code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from penstock.cli.app import app
from penstock_bench.catalog import BENCHES
from penstock_bench.cli import bench, nexmark
from tests.pages import blocks

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRAPPED = [page for page in PAGES if page.name != "CHANGELOG.md"]
LONGEST = 120

_FENCE = re.compile(r"^\s*(```|~~~)\s*(\w*)")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_COMMAND = re.compile(r"^(?: {4}|\$ )?(penstock [a-z][^\n]*)$", re.MULTILINE)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")
_TABLE_CODE_OR_IMAGE = ("|", "    ", "![")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not in a fenced block."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of each link or image to a file or a heading of this repository."""
    lines = dict(_prose(text))
    prose = "\n".join(lines.get(number, "") for number in range(1, text.count("\n") + 2))
    prose = re.sub(r"`[^`\n]*`", "", prose)
    for link in _LINK.finditer(prose):
        if not re.match(r"[a-z]+:", link[1]):
            yield prose.count("\n", 0, link.start()) + 1, link[1]


def _anchors(text: str) -> set[str]:
    """Anchors that GitHub makes of the headings: lower case, no punctuation, hyphens for spaces.

    >>> sorted(_anchors("# `penstock bench live`, 1\\n## Words\\n## Words"))
    ['penstock-bench-live-1', 'words', 'words-1']
    """
    seen: dict[str, int] = {}
    anchors = set()
    for _, line in _prose(text):
        if heading := _HEADING.match(line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2])
            anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            again = seen.get(anchor, 0)
            anchors.add(f"{anchor}-{again}" if again else anchor)
            seen[anchor] = again + 1
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_anchors_exist(page: Path) -> None:
    dead = []
    for number, target in _links(page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in _anchors(file.read_text())
        ):
            dead.append(f"{_name(page)}:{number}: {target}")
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_outside_links_are_well_formed(page: Path) -> None:
    outside = [link[1] for link in _LINK.finditer(page.read_text()) if ":" in link[1]]
    assert [
        link for link in outside if not re.fullmatch(r"https://[\w-]+(\.[\w-]+)+(/\S*)?", link)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_code_says_its_language_so_that_it_is_run(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.code, str(block), "exec")
        else:
            assert block.language in ("", "sh", "bash", "yaml", "json"), str(block)
            assert not re.search(r"^import |\bps\.\w+\(", block.text, re.MULTILINE), str(block)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_and_their_options_exist(page: Path) -> None:
    text = page.read_text()
    wrong = []
    for line in _COMMAND.findall(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # an excerpt of a sentence
        if (fault := _fault(words[1:])) is not None:
            wrong.append(f"{_name(page)}: {line}: {fault}")
    assert wrong == []


def _fault(words: list[str]) -> str | None:
    """Why these are no arguments of the `penstock` command; None if they are."""
    others = {
        "bench": bench,
        "nexmark": nexmark,
    }  # of another package, which `app` only forwards to
    other = others.get(words[0])
    command: Any = get_command(app if other is None else other)
    words = words if other is None else words[1:]
    while words and isinstance(command, TyperGroup):
        if (named := command.commands.get(words[0])) is None:
            return f"there is no command {words[0]}"
        command, words = named, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {
        "--help"
    }
    unknown = {word for word in words if re.match(r"--\w", word)} - known
    return f"no option {', '.join(sorted(unknown))}" if unknown else None


@pytest.mark.parametrize("page", WRAPPED, ids=_name)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    too_long = [
        f"{_name(page)}:{number}: {len(line)} characters"
        for number, line in _prose(page.read_text())
        if len(line) > LONGEST and not line.startswith(_TABLE_CODE_OR_IMAGE)
    ]
    assert too_long == []


@pytest.mark.parametrize("name", BENCHES)
def test_every_goal_of_a_benchmark_is_on_its_page(name: str) -> None:
    page = (ROOT / "docs" / "results" / f"{name}.md").read_text()
    assert [goal for goal in BENCHES[name].goals if f"`{goal}`" not in page] == []


def test_every_report_and_picture_is_linked() -> None:
    folder = ROOT / "docs" / "results"
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for _, target in _links(page.read_text())
    }
    assert [file.name for file in sorted(folder.iterdir()) if file.resolve() not in linked] == []


def test_the_checks_see_what_they_look_for() -> None:
    text = "# A `b`\n`[c](d)` [x\ny](no.md#a-b), ![z](z.png).\n```python\nif [e](f)\n```\n"
    assert list(_links(text)) == [(2, "no.md#a-b"), (3, "z.png")]
    assert _anchors(text) == {"a-b"}
