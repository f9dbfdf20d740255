"""``bisect-trt prefix``: find the shortest prefix of a model, in topological order, that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bisect_trt.commands.table import Command
from bisect_trt.onnxlib.save import save_model
from bisect_trt.options.compare import CompareOptions
from bisect_trt.options.shared import CheckOptions, Data, General, Model, Places, Search, to_file
from bisect_trt.options.spec import switch
from bisect_trt.report.result import Result
from bisect_trt.search.oracle import Minimum
from bisect_trt.search.strategy import shortest_failing_prefix
from bisect_trt.session.call import Call
from bisect_trt.session.space import Space
from bisect_trt.targets.options import Target


@dataclass
class Prefix:
    """Find the shortest prefix of the model that fails."""

    model: Model
    output: Annotated[Path, to_file("The shortest prefix that fails.")] = Path("prefix.onnx")
    overwrite: Annotated[bool, switch("Replace a file that exists.")] = False


def run(call: Call) -> Result:
    """Find the prefix, and write it.

    Raises:
        UsageError: The prefix cannot be written.
    """
    own = call[Prefix]
    check = call.check(call[Target].settings())
    call.may_write(own.output, overwrite=own.overwrite)
    opened = call.open(check)
    with opened.searching(check) as session:
        session.probe_original(call[Search])
        subject, units = session.subject, session.subject.units
        space = Space(lambda subset: subject.cut(units.bare(subset)))
        nothing: frozenset[int] = frozenset()
        length = space.search(
            session.prober, lambda ask: shortest_failing_prefix(units.searched, nothing, ask)
        )
        prefix = frozenset(units.searched[:length])
        candidate = subject.cut(units.bare(prefix))
        save_model(
            candidate.proto, subject.workspace.weights.folder_of(candidate.proto), own.output
        )
        call.result.artifacts["prefix"] = str(own.output)
        call.result.culprits = subject.describe_searched(prefix)[-1:]
        call.console.answer(f"{own.output}: {len(prefix)} of {len(units)} nodes.")
        session.conclude(Minimum(prefix, proven=True))
    return call.result


COMMAND = Command(
    (Prefix, CheckOptions, Target, Places, CompareOptions, Data, Search, General),
    "prefix_command:run",
    output="prefix.onnx",
)
