"""The page as one HTML file: styles, scripts and data inlined. It needs no server and no network."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from penstock import codec

_STATIC = Path(__file__).parent / "static"
MODULES = (
    "format.js", "source.js", "model.js", "charts.js", "tiles.js", "slot_map.js", "lists.js", "control.js",
    "main.js",
)  # fmt: skip
"""Scripts of the page, each after those that it imports. As one script they share one scope, so no two of
them may define the same name."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def whole_page(data: dict[str, Any] | None, title: str = "") -> str:
    """The page with everything inlined. `data` is the result of `timeline.page_data`; None: an empty page,
    for a caller who adds the data."""
    html = _text("index.html")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
    html = html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{policy}', 1)
    if title:
        html = html.replace("<title>Penstock</title>", f"<title>{escape(title)}</title>", 1)
    html = _LINK.sub(lambda link: f"<style>\n{_text(link[1])}</style>", html)
    scripts = [f"<script>\n{_script(_text('uplot/uPlot.iife.min.js'))}</script>"]
    if data is not None:
        inlined = codec.text(data).replace("<", "\\u003c")
        scripts.append(f'<script type="application/json" id="recording">{inlined}</script>')
    modules = "\n".join(_unbound(_text(name)) for name in MODULES)
    scripts.append(f'<script type="module">\n{_script(modules)}</script>')
    html = _SCRIPT.sub("", html)
    return html.replace("</head>", "\n".join(scripts) + "\n</head>", 1)


_LINK = re.compile(r'<link rel="stylesheet" href="static/([^"]+)">')
_SCRIPT = re.compile(r'<script [^>]*src="static/[^"]+"></script>\n?')
_IMPORT = re.compile(r'^import [^;]*? from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _unbound(module: str) -> str:
    """A module without its imports and exports. A file cannot import another one where there is no server."""
    return _EXPORT.sub("", _IMPORT.sub("", module))


def _script(text: str) -> str:
    return text.replace("</script", "<\\/script")
