"""What a target finds on this machine; run as a process of its own, so that a library that crashes is a finding.

``python -m bisect_trt.targets.about TARGET LOOK FILE`` writes JSON: what was found, by name, and why the rest is not there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bisect_trt.errors import UnavailableError
from bisect_trt.targets import find
from bisect_trt.targets.settings import TargetSettings


def main() -> None:
    """Write down what there is of what is named on the command line."""
    found: dict[str, str] = {}
    missing = None
    target, look, file = sys.argv[1:]
    try:
        found.update(find(target).look(look, TargetSettings(target)))  # what comes before an error stays
    except UnavailableError as error:
        missing = str(error)
    except Exception as error:
        missing = f"{type(error).__name__}: {error}."
    Path(file).write_text(json.dumps({"found": found, "missing": missing}))
    os._exit(0)  # some libraries crash when they are taken down


if __name__ == "__main__":
    main()
