"""HTML page of a report, in one file with its style, its script and its data.

Knows how to embed texts in HTML safely. Does not know what the data means; page.js does.
"""

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any

SCRIPTS = (
    "words.js",
    "charts.js",
    "lists.js",
    "keys.js",
    "page.js",
)  # Each may use the ones before it.
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def render_page(data: dict[str, Any]) -> str:
    """Return the page. Its policy lets only its own script and style run, whatever the data is.

    >>> text = render_page({"lake": "</script><b>"})
    >>> "</script><b>" in text, "\\\\u003c/script\\\\u003e" in text
    (False, True)
    """
    folder = resources.files(__package__)
    frame, style = ((folder / name).read_text("utf-8") for name in ("page.html", "page.css"))
    script = "\n".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )
    return Template(frame).substitute(
        POLICY=policy,
        TITLE=html.escape(f"{data['lake']}: report"),
        STYLE=style,
        SCRIPT=script,
        DATA=embed_json(data),
    )


def embed_json(data: Any) -> str:
    """Return JSON for a script element: ASCII without characters that HTML interprets.

    >>> embed_json({"key": "<!--é"})
    '{"key":"\\\\u003c!--\\\\u00e9"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPED)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
