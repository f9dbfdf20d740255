"""Gathers the pages of the site into ``build/pages``: ``python docs/site.py``; then ``mkdocs build --strict`` (``make site``).

The pages lie where readers of the repository look for them, some beside docs/, so mkdocs cannot read them in place. They keep
their places relative to each other; only a link to a folder becomes one to its README, and to another file a plain name.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
PATTERNS = ("*.md", "docs/*.md", "docs/tutorials/*.md", "examples/*/README.md", "benchmarks/README.md")
PICTURES = ("docs/*.png", "docs/*.svg")


def gather() -> None:
    """Write the folder anew."""
    shutil.rmtree(PAGES, ignore_errors=True)
    files = [file for pattern in (*PATTERNS, *PICTURES) for file in sorted(ROOT.glob(pattern))]
    for file in files:
        place = PAGES / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            place.write_text(_linked(file, set(files)), encoding="utf-8")
        else:
            shutil.copyfile(file, place)


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

    return re.sub(r"(?<!!)\[([^]]*)\]\(([^)\s]+)\)", lead, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    gather()
