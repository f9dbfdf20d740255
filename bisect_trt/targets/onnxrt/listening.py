"""What ONNX Runtime says in its own log of the passes over a graph; it is sent to places, so it has Python 3.8's syntax."""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any, Callable, Dict, List

from bisect_trt.targets.messages import BuildError

ALOUD = ("log_severity_level", "0")
"""The option of a session that says all it does."""
Heard = Dict[str, List[str]]


def listen(load: Callable[[], Any]) -> Heard:
    """What is said while a session is opened; one that is refused says what it did till then. See :func:`heard`."""
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            load()
        except BuildError:
            pass
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        return heard(log.read().decode(errors="replace"))


def heard(log: str) -> Heard:
    """What ONNX Runtime's own log, at its most verbose, says of the passes.

    Returns:
        ``ran``: the passes that ran, and ``changed``: those of them that changed the model. Empty where it does not say,
        as before 1.17.
    """
    ran: dict[str, bool] = {}
    for name in re.findall(r"Applying graph transformer (\S+) on step", log):
        ran.setdefault(name, False)
    for name, changed in re.findall(r"GraphTransformer (\S+) modified: (\d)", log):
        ran[name] = ran.get(name, False) or changed == "1"
    if not ran:
        return {}
    # The pass in which a model becomes invalid does not get so far as to say that it changed it.
    unfinished = re.findall(r"Applying graph transformer (\S+) on|GraphTransformer \S+ modified", log)[-1]
    return {"ran": list(ran), "changed": [name for name, changed in ran.items() if changed or name == unfinished]}
