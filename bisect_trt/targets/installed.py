"""How ``reproduce.py`` runs a model on a target that says no other way: by way of bisect-trt, as it was when it failed."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Mapping

from bisect_trt.targets.standalone import Refused


def run(path: pathlib.Path, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The outputs of the model, by name."""
    import bisect_trt
    from bisect_trt.targets.base import make_runtime
    from bisect_trt.targets.messages import BuildError, RunError
    from bisect_trt.targets.settings import TargetSettings

    print(f"bisect-trt {bisect_trt.__version__}")
    os.chdir(path.parent)  # files that the target reads are named from here
    runtime = make_runtime(TargetSettings.from_json(settings["target"]))
    try:
        return runtime.load(path, inputs).run(inputs)
    except BuildError as error:
        raise Refused("build", error.message) from error
    except RunError as error:
        raise Refused("run", error.message) from error


def sign(refused: Refused, names: list[str]) -> str:
    """The signature of a refusal."""
    cause: Any = refused.__cause__
    return str(cause.sign(names))
