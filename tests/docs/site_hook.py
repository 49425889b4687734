"""A hook of mkdocs: the marks that tests read behind a block's language (see pages.py) are nothing for readers."""

from __future__ import annotations

import re

_MARKS = re.compile(r'^( *```+\w+)(?: [a-z-]+="[^"\n]*")+ *$', re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return the page's source without marks."""
    return _MARKS.sub(r"\1", markdown)
