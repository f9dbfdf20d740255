"""Command lines as people type them for this kind of tool.

Several values may follow one flag (``--input-shapes a:[1] b:[2]``) and ``--check`` takes all that comes after it.
click's options take one value each, so the words are rewritten to that before it sees them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"-\d")
CHECK = "--check"


def rewrite(words: Sequence[str], several: frozenset[str]) -> list[str]:
    """Write ``--flag a b`` as ``--flag=a --flag=b``, and each word after ``--check`` as ``--check=word``.

    Args:
        words: The command line without the program's name.
        several: The flags of its command that take several values.
    """
    done: list[str] = []
    current = ""
    for place, word in enumerate(words):
        if word == CHECK and CHECK in several:
            rest = words[place + 1 :]
            return done + ([f"{CHECK}={each}" for each in rest] or [f"{CHECK}="])
        if word in several:
            current = word
            if place + 1 == len(words) or _is_flag(words[place + 1]):
                done.append(word)  # without a value: click says so
        elif current and not _is_flag(word):
            done.append(f"{current}={word}" if current.startswith("--") else f"{current}{word}")
        else:
            current = ""
            done.append(word)
    return done


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)
