"""Constructions that the package and pages do not use; run with paths, it lists those that are left in these files."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

BANNED = {
    r"whose(?!:)": "name the owner: 'tensors whose value is known' -> 'tensors with a known value'",
    r"nobody|somebody": "name the function, or 'the user'",
    r"who (is|are|was|were|says?|has|had|reads?|makes?|owns?)": "'which', or the name of the program",
    r"told": "'received', 'configured', 'distinguished'",
    r"said(?!:)|(is|are) says": "'reported', 'printed', 'given'",
    r"where nothing is said|as they say|what (it|they) says?": "'by default', 'as reported'",
    r"mend(s|ed|ing)?": "'fix'",
    r"(that|those) of": "repeat the noun",
    r"of (it|that)(?=[.,;:)]|$)": "repeat the noun, or drop the words",
    r"stands? (in )?for": "'replaces', 'represents'",
    r"(is|are) there(?! (a|an|any|no)\b)": "'is installed', 'exists', 'is available'",
    r"does (it|that)(?=[.,;:)?]|$)": "name the subject and the verb: 'Cause: the graph optimizer X'",
    r"(what|to) makes? (it|the whole model) pass": "'fix', 'the fix'",
    r"be rid of": "'fix', 'remove'",
    r"by hand of|in the hands? of": "name the subject",
    r"the law of": "'the distribution of'",
    r"on the way": "'meanwhile', or drop the words",
    r"goes? by(?! the)": "'is named'",
    r"held (against|to)|is held on": "'compared with', 'passes'",
    r"for as long as|so long as": "'while'",
    r"but for": "'except'",
    r"left to (it|them)(self|selves)": "'by default'",
    r"shall|ought": "'should', 'must'",
    r"at work": "'running'",
    r"(stands?|is|are) in the way": "'prevents'",
    r"(be|is) (to be )?had": "'obtained', 'available'",
    r"again and again": "'repeatedly', or the number of times",
    r"is made of": "'consists of'",
    r"comes? of": "'results from'",
    r"what (is|was|were) (made|asked|said|told|meant|seen|held|left|given|known) (of|for|about|with)": "name the thing",
    r"leav(e|es|ing) out of": "'exclude from'",
    r"(fed|given) what": "name the values",
}
"""Regular expression of a construction, and the words to use in its place."""
BANNED_STARTS = {
    r"(What|Which|How|Where|Who|Whose|As above|Likewise|The same|Of|So many|So much)\b": "begin with a noun or a verb"
}
"""The same at the start of a docstring's first line or of an ``Attributes``/``Args`` entry's
docstring."""

_BANNED = re.compile(
    "|".join(rf"(?P<r{place}>\b(?:{each}))(?!\w)" for place, each in enumerate(BANNED)),
    re.IGNORECASE,
)
_STARTS = re.compile("|".join(BANNED_STARTS))


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a docstring: each string with a space of a module, each line of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        prose = re.sub(
            r"^```.*?^```$|`[^`\n]*`",
            lambda found: "\n" * found[0].count("\n"),
            source,
            flags=re.DOTALL | re.MULTILINE,
        )
        yield from ((place, line, False) for place, line in enumerate(prose.splitlines(), 1))
        return
    docs = set[int]()
    # A statement comes before its value.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            docs.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value, id(node) in docs


def found(path: Path) -> Iterator[str]:
    """Yield place, words and advice for each banned construction of a file."""
    name = path.relative_to(ROOT)
    for line, text, is_doc in texts(path):
        for match in _BANNED.finditer(text):
            advice = list(BANNED.values())[int(str(match.lastgroup)[1:])]
            before = text[: match.start()].count("\n") if is_doc else 0
            around = text[max(0, match.start() - 30) : match.end() + 20].replace("\n", " ")
            yield f"{name}:{line + before}: '{match[0]}' in '...{around}...': {advice}"
        if is_doc and (start := _STARTS.match(text)):
            yield f"{name}:{line}: '{start[0]}' begins '{text[:60].splitlines()[0]}': {BANNED_STARTS[_STARTS.pattern]}"


def files() -> Iterator[Path]:
    """Yield the package's modules, and the pages."""
    yield from sorted((ROOT / "bisect_trt").rglob("*.py"))
    yield from sorted(
        each
        for kind in ("html", "md", "js")
        for each in (ROOT / "bisect_trt").rglob(f"*.{kind}")
        if each.parent.name != "vendor"  # a library of others
    )
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/tutorials/*.md",
        "examples/*/README.md",
        "skills/*/*.md",
    ):
        yield from (page for page in sorted(ROOT.glob(pattern)) if page.name != "CHANGELOG.md")


if __name__ == "__main__":
    named = [
        path
        for word in sys.argv[1:]
        for path in ([Path(word)] if Path(word).is_file() else Path(word).rglob("*.py"))
    ]
    hits = [
        line for path in (map(Path.absolute, named) if named else files()) for line in found(path)
    ]
    print(*hits, f"{len(hits)} left", sep="\n")
