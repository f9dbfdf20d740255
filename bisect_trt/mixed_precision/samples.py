"""Samples that the search has not seen, a round at a time, each with the outputs of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bisect_trt.errors import UsageError
from bisect_trt.mixed_precision.task import Task
from bisect_trt.onnxlib.network import Network
from bisect_trt.onnxlib.nodes import attribute
from bisect_trt.onnxlib.shapes import input_infos
from bisect_trt.probe.models import Models
from bisect_trt.probe.oracles import BuiltinCheck
from bisect_trt.targets.settings import reference_settings
from bisect_trt.tensors.fresh import FreshSamples
from bisect_trt.tensors.inputs import DataOptions, Sample, make_inputs, validate_sample
from bisect_trt.tensors.npz import load_npz
from bisect_trt.tensors.scripts import is_script
from bisect_trt.worker.protocol import Failed, Series
from bisect_trt.worker.protocol import Sample as SampleFiles

_MOST_BYTES = 1 << 30
"""Of the values of fresh samples, on the disk at a time."""
_PASSES_ON = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand")
"""Operators through which indices stay what they are."""


@dataclass(frozen=True)
class Round:
    """Some samples.

    Attributes:
        files: The files of their inputs and of the reference's outputs.
        samples: The inputs.
    """

    files: tuple[SampleFiles, ...]
    samples: tuple[Sample, ...]

    def only(self, places: Sequence[int]) -> Round:
        """Some of them."""
        return Round(tuple(self.files[p] for p in places), tuple(self.samples[p] for p in places))

    def __add__(self, other: Round) -> Round:
        return Round(self.files + other.files, self.samples + other.samples)


class Fresh:
    """Fresh samples: the user's, or drawn with the distribution of those that the search was given.

    Attributes:
        drawn: How they are made, in words.
        given: Whether they are the user's.
    """

    def __init__(self, task: Task, ways: Sequence[str] | None = None) -> None:
        """Read the user's.

        Args:
            task: The search.
            ways: How values are made, where that is not in all of them; see ``FreshSamples``.

        Raises:
            UsageError: They do not fit the model.
        """
        self._task = task
        self._count = task.settings.fresh_samples
        self._next = 0
        subject = task.subject
        law = FreshSamples.like(subject.samples, table_sizes(subject.network), subject.settings.data.seed)
        self._law = law if ways is None else replace(law, ways=tuple(ways))
        data = task.settings.validation_data
        self._given = user_samples(task, data)
        self.given = bool(data)
        self.drawn = f"from {', '.join(data)}" if data else self._law.describe()

    @property
    def why_none(self) -> str | None:
        """Why there are none, if so."""
        if self.given:
            return None
        if not self._count:
            return "none were asked for"
        return None if self._law.varies else "every value of the inputs may be none but the one given"

    def round(self, number: int) -> Round | None:
        """The samples of a round, others than those of the rounds before unless they are the user's.

        A sample on which the reference is not finite, or does not run, is none.

        Returns:
            ``None`` where the reference does not run the model.
        """
        if self.given:
            return self._predicted(f"validation-{number}", self._given)
        each = sum(value.nbytes for value in self._task.subject.samples[0].values())
        each += sum(value.nbytes for value in self._golden_of_first().values())
        wanted = max(min(self._count, _MOST_BYTES // max(each, 1)), 1)
        found = Round((), ())
        for attempt in range(3):
            missing = wanted - len(found.samples)
            if not missing:
                break
            drawn = [self._law.draw(self._next + place) for place in range(missing)]
            self._next += missing
            more = self._predicted(f"fresh-{number}-{attempt}", drawn)
            if more is None:
                return None
            found = Round(found.files + more.files, found.samples + more.samples)
        return found if found.samples else None

    def _golden_of_first(self) -> dict[str, Any]:
        subject = self._task.subject
        return subject.reference.select(subject.network.outputs)

    def _predicted(self, name: str, samples: Sequence[Sample]) -> Round | None:
        """Those samples that the reference gives finite values for."""
        subject = self._task.subject
        models, workspace = subject.models, subject.workspace
        files = tuple(
            SampleFiles(models.feed(f"{name}-{place}", sample), workspace.scratch(f"{name}-{place}.golden.npz"))
            for place, sample in enumerate(samples)
        )
        if not files:
            return None
        path = models.write(name, subject.truth.proto)
        if not _run(models, path, files):
            for each in files:  # one that the model does not run on (an index past the end of a table) is none
                _run(models, path, [each])
        good = [place for place, each in enumerate(files) if each.golden.exists() and self._usable(each.golden)]
        return Round(files, tuple(samples)).only(good)

    def _usable(self, golden: Path) -> bool:
        """Whether what should come out is as finite as what came of the sample that was given."""
        first = self._golden_of_first()
        for name, value in load_npz(golden).items():
            if value.dtype.kind == "f" and not np.isfinite(value).all() and np.isfinite(first.get(name, value)).all():
                return False
        return True


def _run(models: Models, model: Path, files: Sequence[SampleFiles]) -> bool:
    """Run the reference on samples, and leave what comes out where their golden values lie; whether it ran on all."""
    request = Series(reference_settings(), model, tuple(f.inputs for f in files), tuple(f.golden for f in files))
    return not isinstance(models.ask(request, timeout=_PATIENCE), Failed)


_PATIENCE = 3600.0
"""Seconds that the reference may take for all samples of a round."""


def refuse_validation(task: Task) -> None:
    """Check the user's validation data before anything is searched.

    Raises:
        UsageError: It does not fit the model, or there is nothing to compare on it.
    """
    data = task.settings.validation_data
    if data and not isinstance(task.prober.runner.check, BuiltinCheck):
        raise UsageError(
            "--validation-data is for a target that is compared with the reference; with --check or --metric drop it, and "
            "use these samples there."
        )
    user_samples(task, data)


def user_samples(task: Task, data: Sequence[str]) -> list[Sample]:
    """The user's validation data: files as for ``--load-inputs``, or scripts as for ``--data-loader-script``.

    Raises:
        UsageError: A file is not there or does not fit the model.
    """
    infos = input_infos(task.subject.network)
    found: list[Sample] = []
    for entry in data:
        if is_script(entry):
            samples = make_inputs(infos, DataOptions(data_loader_script=entry))
        else:
            samples = make_inputs(infos, DataOptions(load_inputs=(Path(entry),)))
        found += [
            validate_sample(infos, sample, f"sample {number} of {entry}") for number, sample in enumerate(samples)
        ]
    return found


def table_sizes(network: Network) -> dict[str, int]:
    """Of graph inputs that are indices into weights: how many entries the smallest such table has."""
    sizes: dict[str, int] = {}
    for given in network.inputs:
        reached, waiting = {given}, [given]
        while waiting:
            name = waiting.pop()
            for reader in network.consumers.get(name, ()):
                node = network.nodes[reader]
                if node.op_type == "Gather" and node.input[1] == name and node.input[0] in network.initializers:
                    size = int(network.initializers[node.input[0]].dims[attribute(node, "axis", 0)])
                    sizes[given] = min(size, sizes.get(given, size))
                if node.op_type in _PASSES_ON and node.input[0] == name:
                    new = [made for made in network.made(reader) if made not in reached]
                    reached.update(new)
                    waiting += new
    return sizes
