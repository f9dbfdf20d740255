"""The folder one attaches to a bug report."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bisect_trt.errors import UsageError
from bisect_trt.reporting.culprits import describe_nodes, guilty_first
from bisect_trt.reporting.environment import environment
from bisect_trt.reporting.issue import GOLDEN_IS, ISSUE, Cause, Issue, Since, Trial, issue_files, minimal, raw_inputs
from bisect_trt.reporting.markdown import block, code, prose, table
from bisect_trt.reporting.script import render_script
from bisect_trt.targets.base import Script
from bisect_trt.targets.messages import names_of
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import is_string
from bisect_trt.tensors.npz import save_npz

MODEL, INPUTS, GOLDEN, README = "model.onnx", "inputs.npz", "golden.npz", "README.md"
SCRIPT, FILES = "reproduce.py", "files"
_NAMED_OPS = 2
DATA_SET = "test_data_set_0"
_PB_LIMIT_BYTES = (1 << 31) - (1 << 16)
"""Protobuf ends at 2 GiB."""


@dataclass(frozen=True)
class Reproducer:
    """What goes into the folder.

    Attributes:
        model: The minimal model, as it lies in the folder.
        ran: The form of it that the target really ran, where that is another (fp16 by round trips, free dimensions).
        lowered: Whether the low precision is in that form already.
        inputs: Its inputs.
        golden: What its outputs should be.
        comparisons: What the target made of them.
        answer: What fails, in a sentence.
        target: The target, the files that it reads in the folder.
        found: What the search did, in a sentence.
        failure: The signature of the failure.
        refusal: What the target says of the model, where its not running it is the failure.
        timeout: Seconds that a run may take, where that is the failure.
        validate: Whether NaN and Inf fail wherever they are.
        files: Those that the target reads, by name.
        ruled_out: What else was run, and what came of it, each in a sentence.
        trials: What came of the commands, by tool; of ``reproduce.py`` under its name.
        cause: What of the target does it: each in a sentence, with the lines of code that turn it.
        blamed: Places of the model's nodes, the guilty first.
        fault: Whose fault it is, in a sentence, where that was asked.
        is_bug: Whether it may be a bug of the target.
        places: Where the target ran, if not here: what there is, by name.
        since: Since which release it fails, where that was asked.
        written: Where nodes were written, in words, by the first thing that each makes.
    """

    model: onnx.ModelProto
    ran: onnx.ModelProto | None
    lowered: bool
    inputs: Mapping[str, NDArray[Any]]
    golden: Mapping[str, NDArray[Any]]
    comparisons: Sequence[TensorComparison]
    answer: str
    target: TargetSettings
    found: str
    failure: str
    refusal: str | None = None
    timeout: float | None = None
    validate: bool = False
    files: Sequence[str] = ()
    ruled_out: Sequence[str] = ()
    trials: Mapping[str, Trial] = field(default_factory=dict)
    blamed: Sequence[int] = ()
    fault: str | None = None
    is_bug: bool = True
    cause: Sequence[Cause] = ()
    places: Sequence[Mapping[str, str]] = ()
    since: Since | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Write all but the model itself and the files that the target reads, which lie there already.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            files = [MODEL, INPUTS, GOLDEN, SCRIPT, README, ISSUE, *self.files]
            if self.ran is not None:
                onnx.save(self.ran, str(folder / self.target_model))
                files.insert(1, self.target_model)
            save_npz(folder / INPUTS, self.inputs)
            save_npz(folder / GOLDEN, self.golden)
            (folder / SCRIPT).write_text(self.source(), encoding="utf-8")
            files += self._write_data_set(folder) + issue_files(self.issue(), folder, self.inputs, self.golden)
            self.write_texts(folder)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return [folder / file for file in files]

    def write_texts(self, folder: Path) -> None:
        """Write what is said of it, again too.

        Raises:
            UsageError: The folder cannot be written.
        """
        try:
            (folder / README).write_text(self.readme(), encoding="utf-8")
            issue = self.issue()
            text = issue.render(raw_inputs(issue, self.inputs), self.trials, self.how_to_run())
            (folder / ISSUE).write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error

    @property
    def title(self) -> str:
        """What fails and how, as a part of a file's name: ``pow-overflow``, ``matmul-and-2-more-mismatch``."""
        ops = [node.op_type.lower() for node in guilty_first(self.model, self.blamed)]
        words = ops if len(ops) <= _NAMED_OPS else [ops[0], "and", str(len(ops) - 1), "more"]
        return "-".join([*words, self.issue().kind])

    @property
    def target_model(self) -> str:
        """The file that the target runs."""
        if self.ran is None:
            return MODEL
        return f"model_{('bf16' if self.target.bf16 else 'fp16') if self.lowered else 'target'}.onnx"

    @property
    def script(self) -> Script:
        """How ``reproduce.py`` runs the model."""
        model = minimal(self.model, self.target_model, lowered=self.lowered)
        return self.target.target.script(self.target, model)

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
            self.model,
            self.target,
            MODEL,
            self.target_model,
            self.lowered,
            self.comparisons,
            self.failure,
            self.refusal,
            self.found,
            self.versions(),
            self.ruled_out,
            self.blamed,
            self.fault,
            self.is_bug,
            self.cause,
            self.since,
            self.written,
        )

    def source(self) -> str:
        """``reproduce.py``."""
        return render_script(
            self.script,
            self.target_model,
            sorted({*names_of(self.model.graph), *names_of((self.ran or self.model).graph)} - {""}),
            self.comparisons,
            answer=self.answer,
            described=self.target.describe() + "".join(f", seen {where}" for where in self._seen_in()),
            failure=self.failure,
            timeout=self.timeout,
            validate=self.validate,
        )

    def versions(self) -> dict[str, str]:
        """Those of this machine, where the reference ran, and of each place where the target ran."""
        if not self.places:
            return environment()
        there = {
            f"place: {name}" if name != "place" else name: value for each in self.places for name, value in each.items()
        }
        return {**there, **{f"here: {name}": value for name, value in environment().items()}}

    def _seen_in(self) -> list[str]:
        """With which versions of packages, where that is not what is here."""
        about = ("place", "Python", "platform", "CPU", "GPU")
        packages = [", ".join(f"{name} {each[name]}" for name in each if name not in about) for each in self.places]
        return [f"with {known}" for known in dict.fromkeys(packages) if known]

    def how_to_run(self) -> str:
        """A paragraph on ``reproduce.py``, and what came of it here."""
        trial = self.trials.get(SCRIPT, Trial(None, "not run here"))
        kind, _, packages = self.places[0]["place"].partition("=") if self.places else ("", "", "")
        where = (
            f"in an environment with {packages}"
            if kind == "env"
            else f"in {self.places[0]['place']}"
            if self.places
            else "here"
        )
        ran = (
            f"Run {where}, it shows the failure."
            if trial.shows
            else f"Run {where}, it does not show the failure: {trial.why}."
        )
        said = ran if trial.shows is not None else f"It was {trial.why}."
        return (
            f"With nothing but {self.script.needs}, in the versions that this page names (others may be right):\n\n"
            f"{block(f'python {SCRIPT}')}\n\nIt prints the failure, and ends with status 1 while it is there, 0 once it is "
            "gone, and 2, with a sentence, for anything else. " + prose(said)
        )

    def readme(self) -> str:
        """What it is, how to run it, and the versions it was seen with."""
        failed = [f"- {code(c.name)}: {prose(c.describe())}" for c in self.comparisons if not c.passed]
        seen = failed if self.refusal is None else [f"- {prose(self.refusal)}"]
        how = "in low precision (by Casts in the graph)" if self.lowered else "as the target was given it"
        ran = f"{code(self.target_model)} is the same model {how}, which is what ran. " if self.ran is not None else ""
        files = f" What the target reads lies in {code(FILES)}." if self.files else ""
        parts = [
            f"# {prose(self.answer)}",
            f"Target: {prose(self.target.describe())}. Reference: ONNX Runtime on the CPU, graph optimisations off.",
            *([prose(self.fault)] if self.fault is not None else []),
            "## Seen",
            "\n".join(seen),
            "## To see it again",
            self.how_to_run(),
            (
                f"{code(MODEL)} is the smallest model that still fails. {code(INPUTS)} are the values that the network really "
                f"has there, {code(GOLDEN)} is {GOLDEN_IS}, both by tensor name; `inputs.json` and `golden.json` are the same as "
                f"Polygraphy reads them, and {code(DATA_SET)} as ONNX's own test cases have them. {code(ISSUE)} is the text of a "
                f"bug report{'' if self.is_bug else ', which is not to be sent: see its first line'}. {ran}{files}"
            ),
            (
                "`mixed.onnx` and `patched.onnx`, if they are here, are the whole network with a fix, and `other-tools.md` names "
                "its layers. They are no part of the report: leave them out of what you send."
            ),
            "## The model",
            describe_nodes(self.model, guilty_first(self.model, self.blamed), self.written),
            "## How it was found",
            self.found,
            "## Versions",
            table(self.versions()),
        ]
        return "\n\n".join(parts) + "\n"


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
