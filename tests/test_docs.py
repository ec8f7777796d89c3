"""Checks of the documentation: links and anchors exist, Python blocks compile, lines fit a screen."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_bench.catalog import BENCHES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRAPPED = [page for page in PAGES if page.name != "CHANGELOG.md"]
LONGEST = 120

_FENCE = re.compile(r"^\s*(```|~~~)\s*(\w*)")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
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


def _blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """First line, language and text of each fenced block."""
    start, language, block = 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not start:
            start, language, block = number + 1, fence[2], []
        elif fence:
            yield start, language, textwrap.dedent("\n".join(block))
            start = 0
        elif start:
            block.append(line)


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
def test_python_blocks_compile(page: Path) -> None:
    for number, language, block in _blocks(page.read_text()):
        if language == "python":
            # an excerpt of a class may begin with a comment that names its file, further to the left
            code = textwrap.dedent(re.sub(r"^#.*$", "", block, flags=re.MULTILINE))
            compile("\n" * (number - 1) + code, _name(page), "exec")


@pytest.mark.parametrize("page", WRAPPED, ids=_name)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    too_long = [
        f"{_name(page)}:{number}: {len(line)} characters"
        for number, line in _prose(page.read_text())
        if len(line) > LONGEST and not line.startswith(_TABLE_CODE_OR_IMAGE)
    ]
    assert too_long == []


@pytest.mark.parametrize("bench", BENCHES)
def test_every_goal_of_a_benchmark_is_on_its_page(bench: str) -> None:
    page = (ROOT / "docs" / "results" / f"{bench}.md").read_text()
    assert [goal for goal in BENCHES[bench].goals if f"`{goal}`" not in page] == []


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
    assert list(_blocks(text)) == [(5, "python", "if [e](f)")]
