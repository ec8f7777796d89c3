"""The site of the docs: it builds, nothing in it comes from elsewhere, and it has every public name."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

import penstock as ps

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
assert _SPEC is not None
assert _SPEC.loader is not None
docs_site = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(docs_site)

PAGE = PurePosixPath("docs/live.md")
_OUTSIDE = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?(?:https?:)?//"""
)


def build(root: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=quiet, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_nothing_in_the_site_comes_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if _OUTSIDE.search(page.read_text())] == []
    styles = "".join(file.read_text() for file in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    assert [name for name in ps.__all__ if f'id="penstock.{name}"' not in reference] == []


def test_doctests_are_code_and_no_quotations(site: Path) -> None:
    reference = [page.read_text() for page in (site / "api").glob("*.html")]
    assert any('<span class="gp">' in page for page in reference)
    assert not any("<blockquote>" in page for page in reference)


def test_links_out_of_the_docs_lead_to_pages_of_the_site(site: Path) -> None:
    assert 'href="security.html"' in (site / "clusters.html").read_text()
    assert 'href="files/examples/join.py.html"' in (site / "guide.html").read_text()
    assert "def main" in re.sub("<[^>]*>", "", (site / "files/examples/join.py.html").read_text())
    assert 'href="join.py.html"' in (site / "files/examples/index.html").read_text()


def test_dead_links_and_anchors_fail_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("scripts", "src", "mkdocs.yml"):
        os.symlink(ROOT / name, tmp_path / name)
    with (tmp_path / "docs" / "logs.md").open("a") as page:
        page.write("\n[a](none.md) [b](live.md#none) [c](../SECURITY.md#none)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    dead = re.findall(r"'logs.md' contains a link '([^']*)'", built.stderr)
    assert dead == ["none.md", "live.md#none", "security.md#none"]


def test_lists_and_tables_may_follow_a_paragraph() -> None:
    text = "One:\n- a\n  more\n- b\nTwo:\n| x |\n|---|\n```\nno:\n- list\n```\n"
    wanted = "One:\n\n- a\n  more\n- b\nTwo:\n\n| x |\n|---|\n```\nno:\n- list\n```\n"
    assert docs_site.as_in_the_site(text, PAGE) == wanted


def test_the_examples_in_its_docstrings_hold() -> None:
    assert doctest.testmod(docs_site) == (0, 3)


def test_equal_headings_have_the_anchors_of_the_code_host() -> None:
    text = docs_site.as_in_the_site("## What `it` means\n## Else\n## What `it` means\n", PAGE)
    assert text.endswith("## What `it` means {#what-it-means-1}\n")
    assert text.count("{#") == 1


def test_links_are_those_of_the_site() -> None:
    def shown(text: str, source: str = "docs/live.md") -> str:
        return docs_site.as_in_the_site(text, PurePosixPath(source)).strip()

    assert shown("[a](../SECURITY.md#tls)") == "[a](security.md#tls)"
    assert shown("[a](../README.md)") == "[a](index.md)"
    assert shown("[a](../examples)") == "[a](files/examples/index.md)"
    assert shown("[a](../live.md)", "docs/results/live.md") == "[a](../live.md)"
    assert shown("[a](docs/live.md#x)", "CONTRIBUTING.md") == "[a](live.md#x)"
    assert shown("[a](https://example.com/docs)") == "[a](https://example.com/docs)"
    assert shown("[a](#here)") == "[a](#here)"


def test_a_doctest_becomes_a_block() -> None:
    shown = docs_site.with_code("One.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nTwo:\n- a")
    assert shown == "One.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nTwo:\n\n- a"
