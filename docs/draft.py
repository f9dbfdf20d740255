"""``bisect_trt/report/draft.pyi``, from the types of the answers: ``python docs/draft.py`` prints it."""

from __future__ import annotations

import re
import sys
from inspect import get_annotations

from bisect_trt.report import parts
from bisect_trt.report.answers import ANSWERS, Answer
from bisect_trt.report.parts import Head

_HEAD = '''"""The fields of all answers in one struct, which a command fills.

This stub is for type checkers. It is generated from the types of the answers (``make docs``).
"""

from typing import Any

from msgspec import UNSET

'''


def draft() -> str:
    """Return the stub: a list in place of a tuple of any length, and each field absent until it is sought."""
    kinds: dict[str, dict[str, None]] = {}
    answers: list[type[Answer]] = [Answer, *ANSWERS.values()]
    for answer in answers:
        for base in reversed(answer.__mro__):
            for name, kind in get_annotations(base).items():
                text = re.sub(r"^tuple\[(.*), \.\.\.\]", r"list[\1]", str(kind))
                text = "list[str]" if text == "Names" else text
                kinds.setdefault(name, {}).update(dict.fromkeys(text.split(" | ")))
    lines = []
    for name, several in kinds.items():
        if name not in {
            "schema",
            "report",
            "lines",
            *Head.__struct_fields__,
        } and not name.startswith("_"):
            union = " | ".join([*(each for each in several if each != "None"), "None"])
            lines.append(f"    {name}: Sought[{union}] = UNSET")
    words = {*re.findall(r"\w+", "\n".join(lines))} & vars(parts).keys() - {"Entry", "Any", "UNSET"}
    names = ", ".join(sorted({*words, "Head", "Sought"}))
    return (
        f"{_HEAD}from bisect_trt.report.parts import {names}\nfrom bisect_trt.report.text import Entry\n\n"
        'class Draft(Head):\n    """The fields of all answers."""\n\n' + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    sys.stdout.write(draft())
