"""The model at any of the sizes that are swept: one model with these dimensions free, and what it is fed at each size."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path

from bisect_trt.errors import UsageError
from bisect_trt.graph.network import Network
from bisect_trt.graph.save import save_model
from bisect_trt.graph.shapes import fix_input_shapes, free_inputs, input_infos
from bisect_trt.probing.candidate import Candidate
from bisect_trt.probing.protocol import Failed
from bisect_trt.search.size_conditions import Point
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.info import TensorInfo
from bisect_trt.tensors.inputs import Sample, make_inputs, resized
from bisect_trt.tensors.npz import load_npz, save_npz
from bisect_trt.workflows.investigation import Investigation
from bisect_trt.workflows.sweep.dimensions import Dimension, shapes_at
from bisect_trt.workflows.sweep.taken import starts


class Sized:
    """Makes the candidate of a size.

    Attributes:
        target: How the target is set up for all sizes at once; ``None`` where a check of the user's says good or bad.
        engine: Its engine for all of them, if it makes such.
    """

    def __init__(self, investigation: Investigation, target: TargetSettings | None, swept: list[Dimension]) -> None:
        """Free the dimensions; nothing is built yet."""
        subject = investigation.subject
        self._investigation, self._swept = investigation, swept
        self._base = {name: value.shape for name, value in subject.samples[0].items()}
        declared: dict[str, tuple[int | str | None, ...]] = {
            name: subject.declared.get(name, shape) for name, shape in self._base.items()
        }
        self._unlike_file = False
        for dimension in swept:
            for name, axis in dimension.places:
                if isinstance(declared[name][axis], int):
                    self._unlike_file = True
                    dims = list(declared[name])
                    dims[axis] = f"{name}_{axis}"
                    declared[name] = tuple(dims)
        self.proto = free_inputs(subject.network.proto, declared, forget=self._unlike_file)
        self._names = tuple(input_info.name for input_info in input_infos(Network(self.proto)))
        self._refused: dict[Point, str | None] = {}
        self._asked = target
        self.target = target if target is None or target.target.profile(target) else self._spanning(target)
        self.engine: Path | None = None

    def _spanning(self, target: TargetSettings) -> TargetSettings:
        lows, highs = (
            shapes_at(self._base, self._swept, tuple(pick(each.sizes) for each in self._swept)) for pick in (min, max)
        )
        return target.target.spanning(target, {name: (lows[name], highs[name], highs[name]) for name in self._base})

    def file(self) -> Path:
        """A model file that takes every size: the user's own, or, where that fixes a dimension that is swept, one with it free.

        Raises:
            UsageError: It cannot be written.
        """
        subject = self._investigation.subject
        if not self._unlike_file:
            return subject.settings.path
        path = subject.workspace.folder / "free.onnx"
        save_model(self.proto, subject.workspace.weights.folder_of(self.proto), path)
        return path

    def shapes(self, point: Point) -> dict[str, tuple[int, ...]]:
        """Those of the inputs at a point."""
        return shapes_at(self._base, self._swept, point)

    def build(self, point: Point, timeout: float | None) -> None:
        """Build the one engine that all sizes run on, where the target makes engines."""
        subject, console = self._investigation.subject, self._investigation.console
        if self.target is None or self.target.target.engines is None:
            return
        console.say(f"  one engine for all sizes: {' '.join(self.target.flags())}")
        to = subject.workspace.folder / "swept.engine"
        failed = subject.models.build("swept", self.proto, self.inputs(point), to, self.target, timeout)
        if failed is None:
            self.engine = to
        else:
            console.say(f"  that is not built ({failed.message}), so each size gets its own")

    def inputs(self, point: Point) -> Sample:
        """The values at a point: the user's, repeated or cut off, else those that ``--input-shapes`` would give."""
        subject = self._investigation.subject
        data, shapes = subject.settings.data, self.shapes(point)
        if data.load_inputs or data.data_loader_script is not None:
            return {name: resized(value, shapes[name]) for name, value in subject.samples[0].items()}
        infos = input_infos(subject.network)
        return make_inputs([TensorInfo(info.name, info.dtype, shapes[info.name]) for info in infos], data)[0]

    def refused(self, point: Point) -> str | None:
        """Why nothing can be said of a point, if so: the reference does not run it, or it is outside of the profile."""
        if point not in self._refused:
            self._refused[point] = self._prepare(point)
        return self._refused[point]

    def _prepare(self, point: Point) -> str | None:
        try:
            if self._asked is not None:
                self._asked.target.check_inputs(self._asked, self.shapes(point))
        except UsageError as error:
            return f"it is outside of the profile: {error}"
        failed = self._run(point)
        if failed is None:
            return None
        # A model that the reference does not load has free dimensions, so that is no size's doing.
        if (failed.kind == "build" or not self._runs_somewhere) and self._investigation.unreferenced:
            save_npz(self._files(point)[1], {})
            return None
        return f"the reference does not run it: {failed.message}"

    def _run(self, point: Point) -> Failed | None:
        """Why the reference does not run the model at a point, if so."""
        models = self._investigation.subject.models
        inputs, golden = self._files(point)
        save_npz(inputs, self.inputs(point))
        return models.collect(models.write("sized", self.proto), inputs, golden)

    @cached_property
    def _runs_somewhere(self) -> bool:
        return any(self._run(point) is None for point in starts(self._swept))

    def _files(self, point: Point) -> tuple[Path, Path]:
        name = "sized-" + "-".join(map(str, point))
        scratch = self._investigation.subject.workspace.scratch
        return scratch(f"{name}.in.npz"), scratch(f"{name}.golden.npz")

    def title(self, point: Point) -> str:
        """What a point is called: its sizes."""
        return ", ".join(f"{each.name}={size}" for each, size in zip(self._swept, point, strict=True))

    def with_end_of(self, larger: Point, point: Point) -> Candidate | None:
        """The model at a point, fed the last of what a larger one is fed; ``None`` where the reference does not run that."""
        models, shapes, scratch = self._investigation.subject.models, self.shapes(point), self._files(point)[0].parent
        values = {
            name: value[tuple(slice(had - wanted, None) for had, wanted in zip(value.shape, shapes[name], strict=True))]
            for name, value in self.inputs(larger).items()
        }
        inputs, golden = scratch / "end.in.npz", scratch / "end.golden.npz"
        save_npz(inputs, values)
        if models.collect(models.write("sized", self.proto), inputs, golden) is not None:
            return None
        title = f"{self.title(point)}, with the last values of {self.title(larger)}"
        return replace(self.candidate(point), title=title, values={**load_npz(inputs), **load_npz(golden)})

    def candidate(self, point: Point, *, fixed: bool = False) -> Candidate:
        """The model at a point that was not refused; ``fixed`` to its sizes, as the target was set up before, or free."""
        inputs, golden = (load_npz(path) for path in self._files(point))
        proto = self.proto
        if fixed:
            proto = free_inputs(proto, {}, forget=True)
            fix_input_shapes(proto, self.shapes(point))
        title = f"{self.title(point)}, its shapes fixed" if fixed else self.title(point)
        outputs = tuple(self._investigation.subject.network.outputs)
        whole = Candidate(proto, self._names, outputs, title, values={**inputs, **golden})
        if fixed:
            return replace(whole, target=self._unprofiled())
        if self.engine is not None:
            return replace(whole, engine=self.engine)
        return whole if self.target == self._asked else replace(whole, target=self.target)

    def _unprofiled(self) -> TargetSettings | None:
        return None if self._asked is None else self._asked.target.spanning(self._asked, {})
