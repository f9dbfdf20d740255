"""The folder one attaches to a bug report."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from bisect_trt import __version__
from bisect_trt.errors import UsageError
from bisect_trt.reporting.script import TargetScript, render_script
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.npz import save_npz

MODEL, TARGET_MODEL, INPUTS, GOLDEN = "model.onnx", "model_fp16.onnx", "inputs.npz", "golden.npz"
_PACKAGES = ("onnxruntime-gpu", "onnxruntime", "onnx", "numpy", "tensorrt")


@dataclass(frozen=True)
class Reproducer:
    """What goes into the folder.

    Attributes:
        model: The minimal model, as it lies in the folder.
        lowered: The form of it that the target really ran, where that is another (fp16 by round trips).
        inputs: Its inputs.
        golden: What its outputs should be.
        comparisons: What the target made of them.
        script: How the target runs a model.
        answer: What fails, in a sentence.
        target: The target in words.
        found: What the search did, in a sentence.
        refusal: What the target says of the model, where its refusing it is the failure.
    """

    model: onnx.ModelProto
    lowered: onnx.ModelProto | None
    inputs: Mapping[str, NDArray[Any]]
    golden: Mapping[str, NDArray[Any]]
    comparisons: Sequence[TensorComparison]
    script: TargetScript
    answer: str
    target: str
    found: str
    refusal: str | None = None

    def write(self, folder: Path) -> list[Path]:
        """Write all but the model itself, which lies there already.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            files = [MODEL, INPUTS, GOLDEN, "reproduce.py", "README.md"]
            if self.lowered is not None:
                onnx.save(self.lowered, str(folder / TARGET_MODEL))
                files.insert(1, TARGET_MODEL)
            save_npz(folder / INPUTS, self.inputs)
            save_npz(folder / GOLDEN, self.golden)
            (folder / "reproduce.py").write_text(self.source(), encoding="utf-8")
            (folder / "README.md").write_text(self.readme(), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"the reproducer cannot be written to {folder}: {error.strerror}; name another folder."
            ) from error
        return [folder / file for file in files]

    def source(self) -> str:
        """``reproduce.py``: needs nothing of bisect-trt."""
        model = MODEL if self.lowered is None else TARGET_MODEL
        return render_script(
            self.script,
            model,
            self.comparisons,
            answer=self.answer,
            described=self.target,
            refusal=self.refusal,
        )

    def readme(self) -> str:
        """What it is, how to run it, and the versions it was seen with."""
        failed = [f"- `{c.name}`: {c.describe()}" for c in self.comparisons if not c.passed]
        seen = "\n".join(failed if self.refusal is None else [f"- {self.refusal}"])
        versions = "\n".join(f"| {name} | {version} |" for name, version in versions_seen().items())
        nodes = ", ".join(f"{node.op_type} `{node.name or node.output[0]}`" for node in self.model.graph.node[:12])
        more = f" and {len(self.model.graph.node) - 12} more" if len(self.model.graph.node) > 12 else ""
        lowered = (
            f"`{TARGET_MODEL}` is the same model lowered to fp16 (by Casts in the graph), which is what the target ran.\n"
            if self.lowered is not None
            else ""
        )
        return README.format(
            answer=self.answer,
            target=self.target,
            seen=seen,
            nodes=nodes + more,
            versions=versions,
            lowered=lowered,
            found=self.found,
            needs=self.script.needs,
        )


README = """# {answer}

Target: {target}. Reference: ONNX Runtime on the CPU, graph optimisations off.

## Seen

{seen}

## To see it again

```
python reproduce.py
```

needs {needs}, prints the failure, and exits with status 1 while it is there (0 once it is gone).

`model.onnx` is the smallest model that still fails ({nodes}). `inputs.npz` are the values that the network really has
there, `golden.npz` what the reference makes of them, both by tensor name.
{lowered}
## How it was found

{found}

## Versions

| | |
| --- | --- |
{versions}
"""


def versions_seen() -> dict[str, str]:
    """The versions of what matters, for a bug report."""
    seen = {"bisect-trt": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            seen[package] = metadata.version(package)
    seen["Python"] = platform.python_version()
    seen["platform"] = platform.platform()
    return seen
