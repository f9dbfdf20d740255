"""Names of tensors in messages."""

from __future__ import annotations

from collections.abc import Iterable


def quoted(names: Iterable[str], limit: int = 20) -> str:
    """Names for a message, the first few of them where there are many."""
    every = [f"'{name}'" for name in names]
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return (", ".join(every[:limit]) or "none") + more
