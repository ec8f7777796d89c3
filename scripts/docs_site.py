"""Hooks of mkdocs: they build the site from the same files that are read on the code host.

- Pages beside `docs/` (SECURITY.md, CONTRIBUTING.md, CHANGELOG.md) become pages of the site.
- A link to any other file or folder of the repository leads to a page that shows it.
- Lists may follow a paragraph without an empty line, and equal headings have the anchors of the code host.
- Doctests in docstrings become blocks of code.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages in the root of the repository -> their place in the site."""
_FILES = "files"
"""Folder of the site with pages that show other files of the repository."""
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".sh": "sh",
    ".toml": "toml",
}
_FENCE = re.compile(r"^ *(```|~~~)")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")
_HEADING = re.compile(r"^#+ +(.*?) *$")
_slug = slugify(case="lower")
_ROW = re.compile(r"^\|")
_LINK = re.compile(r"(\]\()([^()\s:#]+)((?:#[^()\s]*)?\))")


def site_path(path: PurePosixPath) -> PurePosixPath:
    """The page of the site that shows a file or a folder of the repository.

    >>> [str(site_path(PurePosixPath(p))) for p in ("docs/live.md", "SECURITY.md", "examples/join.py")]
    ['live.md', 'security.md', 'files/examples/join.py.md']
    """
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if str(path) == "README.md":
        return PurePosixPath("index.md")
    if str(path) in BESIDE:
        return PurePosixPath(BESIDE[str(path)])
    if (ROOT / path).is_dir():
        return PurePosixPath(_FILES, path, "index.md")
    return PurePosixPath(_FILES, f"{path}.md")


def linked(source: PurePosixPath, target: str) -> PurePosixPath:
    """The path in the repository that a link of a file names.

    >>> str(linked(PurePosixPath("docs/live.md"), "../examples"))
    'examples'
    """
    return PurePosixPath(os.path.normpath(source.parent / target))


def as_in_the_site(text: str, source: PurePosixPath) -> str:
    """The Markdown of a file of the repository, as mkdocs wants it: links lead to pages of the site, lists
    and tables begin after an empty line, and the anchor of a second heading of one name ends in -1.
    """
    here = site_path(source).parent

    def link(match: re.Match[str]) -> str:
        path = linked(source, match[2])
        if not (ROOT / path).exists():
            return match[0]  # mkdocs says so
        return f"{match[1]}{PurePosixPath(os.path.relpath(site_path(path), here))}{match[3]}"

    lines, before, fenced, anchors = list[str](), "", False, Counter[str]()
    for line in text.splitlines():
        fence = _FENCE.match(line) is not None
        if not fenced and not fence:
            if before.strip() and not before[0].isspace() and _begins(line, before):
                lines.append("")
            line = _LINK.sub(link, line)
            if heading := _HEADING.match(line):
                anchor = _slug(heading[1], "-")
                line += f" {{#{anchor}-{anchors[anchor]}}}" if anchors[anchor] else ""
                anchors[anchor] += 1
        fenced ^= fence
        lines.append(line)
        before = line
    return "\n".join(lines) + "\n"


def _begins(line: str, before: str) -> bool:
    """Whether a list or a table begins with a line."""
    return any(one.match(line) and not one.match(before) for one in (_ITEM, _ROW))


def page_of(path: PurePosixPath) -> str:
    """A page that shows a file of the repository, or lists the files of a folder.

    >>> page_of(PurePosixPath("examples")).splitlines()[0]
    '# examples/'
    """
    file = ROOT / path
    if file.is_dir():
        names = sorted(one.name for one in file.iterdir() if one.is_file())
        items = "\n".join(f"- [{name}]({path.name}/{name})" for name in names)
        return as_in_the_site(f"# {path}/\n\n{items}\n", path)
    return f"# {path}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````\n"


def shown_files(sources: Iterable[PurePosixPath]) -> set[PurePosixPath]:
    """Files and folders outside `docs/` that links of these pages name, and the files of such folders."""
    found = set[PurePosixPath]()
    for source in sources:
        for match in _LINK.finditer((ROOT / source).read_text()):
            path = linked(source, match[2])
            is_ours = path.parts[0] not in ("..", "docs") and path.suffix != ".md"
            if is_ours and (ROOT / path).exists():
                found.add(path)
    folders = [path for path in found if (ROOT / path).is_dir()]
    return found.union(
        path / one.name for path in folders for one in (ROOT / path).iterdir() if one.is_file()
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    pages = [PurePosixPath("docs", file.src_uri) for file in files.documentation_pages()]
    beside = [PurePosixPath(name) for name in BESIDE]
    for path in [*beside, *sorted(shown_files([*pages, *beside]))]:
        content = (ROOT / path).read_text() if path in beside else page_of(path)
        if path in beside:
            content = as_in_the_site(content, path)
        files.append(File.generated(config, str(site_path(path)), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bring a page of `docs/` into the form that mkdocs wants."""
    if page.file.generated_by is not None:
        return markdown
    return as_in_the_site(markdown, PurePosixPath("docs", page.file.src_uri))


class Doctests(Extension):
    """Turns the doctests of a docstring into blocks of code, which Markdown would take for quotations."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code(obj.docstring.value)


def with_code(docstring: str) -> str:
    """A docstring with its doctests as blocks of code, and with empty lines before lists."""
    parts = list[str]()
    for part in docstring.split("\n\n"):
        text = re.sub(r"\s*# doctest:.*$", "", part, flags=re.MULTILINE)
        parts.append(f"```pycon\n{text}\n```" if part.startswith(">>> ") else text)
    return as_in_the_site("\n\n".join(parts), PurePosixPath("docs/api/index.md")).rstrip()
