"""Gathers the pages of the site into ``build/pages``: ``python docs/site.py``; then ``mkdocs build --strict`` (``make site``).

The pages lie where readers of the repository look for them, some beside docs/, so mkdocs cannot read them in place. They keep
their places relative to each other; only a link to a folder becomes one to its README, and to another file a plain name, and a
block of code says in the theme's words which file it is.

It is a hook of mkdocs too, so that nothing is asked of a network: where a page is opened from the disk, the search needs a shim
for workers, which the theme would load from a server.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
PATTERNS = (
    "*.md",
    "docs/*.md",
    "docs/tutorials/*.md",
    "examples/*/README.md",
    "benchmarks/README.md",
)
OTHERS = ("docs/*.png", "docs/*.svg", "docs/theme/*")
_SHIM = "https://unpkg.com/iframe-worker/shim"


def gather() -> None:
    """Write the folder anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    files = [file for pattern in (*PATTERNS, *OTHERS) for file in sorted(ROOT.glob(pattern))]
    for file in files:
        place = PAGES / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(_linked(file, set(files)), encoding="utf-8")
        else:
            shutil.copyfile(file, place)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:  # noqa: ANN401 - what mkdocs gives to a hook
    """A page with the shim that lies beside it."""
    return output.replace(_SHIM, f"{'../' * page.url.count('/')}docs/theme/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:  # noqa: ANN401 - as above
    """None of a page for what is not there: a server has its own, and the disk shows none."""
    return "" if template_name == "404.html" else output_content


def _linked(page: Path, files: set[Path]) -> str:
    """The page's text with links that lead somewhere on the site."""

    def lead(match: re.Match[str]) -> str:
        words, link = match[1], match[2]
        path, _, anchor = link.partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        target = (page.parent / path).resolve()
        if target / "README.md" in files:
            return f"[{words}]({path.rstrip('/')}/README.md{'#' * bool(anchor)}{anchor})"
        return match[0] if target in files else words

    text = re.sub(r"(?<!!)\[([^]]*)\]\(([^)\s]+)\)", lead, page.read_text(encoding="utf-8"))
    return re.sub(
        r"^(```\w+) (\S+)$", r'\1 title="\2"', text, flags=re.MULTILINE
    )  # a file's name after its language


if __name__ == "__main__":
    gather()
