"""The folder one attaches to a bug report."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.errors import UsageError
from bisect_trt.reporting.environment import environment
from bisect_trt.reporting.issue import ISSUE, Issue, issue_files, raw_inputs
from bisect_trt.reporting.script import TargetScript, render_script
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.dtypes import is_string
from bisect_trt.tensors.npz import save_npz

MODEL, INPUTS, GOLDEN, README = "model.onnx", "inputs.npz", "golden.npz", "README.md"
_NAMED_OPS = 2
DATA_SET = "test_data_set_0"
_PB_LIMIT_BYTES = (1 << 31) - (1 << 16)
"""Protobuf ends at 2 GiB."""


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
        target: The target.
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
    target: TargetSettings
    found: str
    refusal: str | None = None

    def write(self, folder: Path) -> list[Path]:
        """Write all but the model itself, which lies there already.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            files = [MODEL, INPUTS, GOLDEN, "reproduce.py", README, ISSUE]
            if self.lowered is not None:
                onnx.save(self.lowered, str(folder / self.target_model))
                files.insert(1, self.target_model)
            save_npz(folder / INPUTS, self.inputs)
            save_npz(folder / GOLDEN, self.golden)
            (folder / "reproduce.py").write_text(self.source(), encoding="utf-8")
            (folder / README).write_text(self.readme(), encoding="utf-8")
            files += self._write_data_set(folder) + issue_files(self.issue(), folder, self.inputs, self.golden)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return [folder / file for file in files]

    def write_texts(self, folder: Path) -> None:
        """Write what is said of it again.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            (folder / README).write_text(self.readme(), encoding="utf-8")
            issue = self.issue().render(raw_inputs(self.target, self.inputs))
            (folder / ISSUE).write_text(issue, encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error

    @property
    def title(self) -> str:
        """What fails and how, as a part of a file's name: ``pow-overflow``, ``matmul-and-2-more-mismatch``."""
        ops = [node.op_type.lower() for node in self.model.graph.node]
        words = ops if len(ops) <= _NAMED_OPS else [ops[0], "and", str(len(ops) - 1), "more"]
        return "-".join([*words, self.issue().failure])

    @property
    def target_model(self) -> str:
        """The file that the target runs."""
        return MODEL if self.lowered is None else f"model_{'bf16' if self.target.bf16 else 'fp16'}.onnx"

    def _write_data_set(self, folder: Path) -> list[str]:
        """The values as ONNX's own test cases have them: ``input_0.pb`` for the model's first input, and so on.

        Source of the layout: onnx, "Adding ONNX backend test cases".
        """
        graph = self.model.graph
        (folder / DATA_SET).mkdir(exist_ok=True)
        files: list[str] = []
        for kind, ends, values in (("input", graph.input, self.inputs), ("output", graph.output, self.golden)):
            for number, end in enumerate(ends):
                value = values.get(end.name)
                if value is None or value.nbytes > _PB_LIMIT_BYTES:
                    continue
                plain = value.astype(object) if is_string(value.dtype) else np.asarray(value)
                files.append(f"{DATA_SET}/{kind}_{number}.pb")
                (folder / files[-1]).write_bytes(numpy_helper.from_array(plain, end.name).SerializeToString())
        return files

    def issue(self) -> Issue:
        """What a bug report says."""
        return Issue(
            self.answer,
            self.target,
            MODEL,
            self.target_model,
            [f"{node.op_type} `{node.name or node.output[0]}`" for node in self.model.graph.node],
            self.comparisons,
            self.refusal,
            self.found,
            environment(),
        )

    def source(self) -> str:
        """``reproduce.py``: needs nothing of bisect-trt."""
        return render_script(
            self.script,
            self.target_model,
            self.comparisons,
            answer=self.answer,
            described=self.target.describe(),
            refusal=self.refusal,
        )

    def readme(self) -> str:
        """What it is, how to run it, and the versions it was seen with."""
        failed = [f"- `{c.name}`: {c.describe()}" for c in self.comparisons if not c.passed]
        seen = "\n".join(failed if self.refusal is None else [f"- {self.refusal}"])
        versions = "\n".join(f"| {name} | {version} |" for name, version in environment().items())
        nodes = ", ".join(f"{node.op_type} `{node.name or node.output[0]}`" for node in self.model.graph.node[:12])
        more = f" and {len(self.model.graph.node) - 12} more" if len(self.model.graph.node) > 12 else ""
        lowered = (
            f"`{self.target_model}` is the same model in low precision (by Casts in the graph), which is what the target ran.\n"
            if self.lowered is not None
            else ""
        )
        return README_TEXT.format(
            answer=self.answer,
            target=self.target.describe(),
            seen=seen,
            nodes=nodes + more,
            versions=versions,
            lowered=lowered,
            found=self.found,
            needs=self.script.needs,
        )


README_TEXT = """# {answer}

Target: {target}. Reference: ONNX Runtime on the CPU, graph optimisations off.

## Seen

{seen}

## To see it again

```
python reproduce.py
```

needs {needs}, prints the failure, and exits with status 1 while it is there (0 once it is gone).

`model.onnx` is the smallest model that still fails ({nodes}). `inputs.npz` are the values that the network really has
there, `golden.npz` what the reference makes of them, both by tensor name; `inputs.json` and `golden.json` are the same as
Polygraphy reads them, and `test_data_set_0` as ONNX's own test cases have them. `ISSUE.md` is the text of a bug report.
{lowered}
`mixed.onnx`, if it is here, is the whole network with a fix, and no part of the report: leave it out of what you send.

## How it was found

{found}

## Versions

| | |
| --- | --- |
{versions}
"""


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"the reproducer cannot be written to {folder}: {error.strerror}; name another folder.")


def pack(folder: Path, files: Sequence[Path], archive: Path, top: str) -> None:
    """Pack what was written, and nothing else that lies in the folder.

    Args:
        folder: The reproducer's.
        files: What :meth:`Reproducer.write` wrote.
        archive: Where to.
        top: What the folder is called in it.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in files:
                packed.write(file, f"{top}/{file.relative_to(folder).as_posix()}")
    except OSError as error:
        raise UsageError(f"{archive} cannot be written: {error.strerror}; make room or name another folder.") from error
