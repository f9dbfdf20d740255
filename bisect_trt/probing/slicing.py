"""Models that would take more memory than there is, run a slice at a time.

The tensors that one slice hands to the next wait on the disk. A slice is optimised by itself, so nothing is fused across a
cut: a model that fits is run in one piece.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import onnx
from numpy.typing import NDArray

from bisect_trt.graph.cut import cut
from bisect_trt.graph.externals import has_external_data
from bisect_trt.graph.network import Network
from bisect_trt.graph.shapes import inferred_infos
from bisect_trt.graph.slices import Slice, held_bytes, plan_narrow_slices
from bisect_trt.graph.surgeon import nothing_stored
from bisect_trt.probing.protocol import Collect, Compare, Compared, Done, Failed, R_co, Request, Series
from bisect_trt.tensors.comparison import TensorComparison
from bisect_trt.tensors.info import TensorInfo, common
from bisect_trt.tensors.kernel_memory import free_bytes
from bisect_trt.tensors.npz import NpzFile, save_npz

_SHARE = 2
"""Of the free memory a model may take this part in one piece: the rest is for another probe, and for what is on the way."""
_PARTS = 4
"""A slice takes this part of what a model may take, so that several probes run side by side."""


class Ask(Protocol):
    """Has a worker answer one request."""

    def __call__(self, request: Request[R_co], /) -> R_co | Failed:
        """What it answers."""


def model_limit(megabytes: int | None = None) -> int:
    """Bytes of memory past which a model is run in slices.

    Args:
        megabytes: What the user asked for, in MiB; ``None`` for half of the free memory, where that is known.
    """
    if megabytes is not None:
        return megabytes << 20
    free = free_bytes()
    return sys.maxsize if free is None else free // _SHARE


class Slicing:
    """Runs models in slices, where they are too large.

    Attributes:
        limit: Bytes of memory that a model may take in one piece, as far as its weights tell.
        models: How many runs were in slices.
        most: The most slices that one of them had.
    """

    def __init__(self, limit: int, scratch: Callable[[str], Path], told: Callable[[], object]) -> None:
        """``scratch`` is where files go, and ``told`` is called at the first such run."""
        self.limit = limit
        self.models = self.most = 0
        self._scratch = scratch
        self._told = told
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def serve(self, request: Request[Any], ask: Ask) -> Any:  # noqa: ANN401 - the request's own kind of reply
        """The answer to a request, put together of those to its slices; ``None`` for one that is asked in one piece."""
        asked = _divisible(request)
        if asked is None or not asked.target.target.capabilities.sliced or (taken := self._take(asked.model)) is None:
            return None
        name = f"sliced-{next(self._numbers)}"
        model, folder = self._scratch(f"{name}.onnx"), self._scratch(name)
        try:
            folder.mkdir()
            run = _Run(*taken, folder, model, ask)
            return run.compare(asked) if isinstance(asked, Compare) else run.collect(asked)
        finally:
            model.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, path: Path) -> tuple[Network, list[Slice]] | None:
        """A model and its slices, if it is too large and can be sliced."""
        try:
            model = onnx.load(str(path), load_external_data=False)
            if held_bytes(model) <= self.limit:
                return None
            network = Network(model)
        except Exception:  # what is no model is for the target to refuse
            return None
        if has_external_data(model) and path.parent.absolute() != self._scratch("x").parent.absolute():
            return None  # its weights lie beside it, and nowhere else
        slices = plan_narrow_slices(network, inferred_infos(network), self.limit // _PARTS)
        if len(slices) == 1 or not set(network.outputs) <= network.producer.keys():
            return None
        with self._lock:
            first, self.models, self.most = not self.models, self.models + 1, max(self.most, len(slices))
        if first:
            self._told()
        return network, slices


def _divisible(request: Request[Any]) -> Compare | Series | None:
    """A request as it is answered slice by slice, if it is one of those that can be."""
    if isinstance(request, Compare):
        return None if request.unfused or request.keep_in is not None or request.feeds is not None else request
    if isinstance(request, Collect):
        alone = request.to.suffix == ".npz" and request.feeds is None
        return Series(request.target, request.model, (request.inputs,), (request.to,)) if alone else None
    return request if isinstance(request, Series) and request.sessions != "each" and not request.beside else None


@dataclass(frozen=True)
class _Run:
    """One run in slices: each is loaded once, for all samples.

    Attributes:
        network: The model.
        slices: Its slices, in order.
        folder: Where tensors wait.
        model: Where the model of a slice goes.
        ask: Has a worker run one.
    """

    network: Network
    slices: Sequence[Slice]
    folder: Path
    model: Path
    ask: Ask

    def collect(self, request: Series) -> Done | Failed:
        """Keep the model's outputs on each input."""
        made = _Made(self.folder, request.inputs)
        for part in self.slices:
            outputs, feeds, to = self._prepare(part, made)
            reply = self.ask(replace(request, model=self.model, inputs=feeds, to=to))
            if isinstance(reply, Failed):
                return reply
            made.add(outputs, to)
        for number, path in enumerate(request.to):
            save_npz(path, made.values(number, self.network.outputs))
        return Done()

    def compare(self, request: Compare) -> Compared | Failed:
        """Compare the model's outputs on all samples, up to one that does not match where that is enough."""
        wanted = set(request.names or self.network.outputs)
        made = _Made(self.folder, [sample.inputs for sample in request.samples])
        comparisons: list[TensorComparison] = []
        skipped: dict[str, str] = {}
        layers: list[dict[str, Any]] = []
        for part in self.slices:
            outputs, feeds, to = self._prepare(part, made)
            samples = [replace(sample, inputs=feed) for sample, feed in zip(request.samples, feeds, strict=True)]
            one = replace(
                request,
                model=self.model,
                samples=tuple(samples),
                names=tuple(wanted.intersection(outputs) or outputs),  # none would be all, and more than these
                every=True,
                save_outputs=to,
                warm_up=None,  # the time of slices is not that of the model
                same=False,
            )
            reply = self.ask(one)
            if isinstance(reply, Failed):
                return reply
            made.add([name for name in outputs if name not in reply.skipped], to)
            comparisons += [each for each in reply.comparisons if each.name in wanted]
            skipped |= reply.skipped
            layers += reply.layers
        for number, path in enumerate(request.save_outputs):
            save_npz(path, made.values(number, [name for name in self.network.outputs if name not in skipped]))
        comparisons.sort(key=lambda each: each.sample or 0)
        if not request.every:
            failing = min((each.sample or 0 for each in comparisons if not each.passed), default=None)
            comparisons = [each for each in comparisons if failing is None or (each.sample or 0) <= failing]
        return Compared(tuple(comparisons), skipped, tuple(layers))

    def _prepare(self, part: Slice, made: _Made) -> tuple[tuple[str, ...], tuple[Path, ...], tuple[Path, ...]]:
        """Write a slice's model and what it is fed; what it makes, these files, and those that its outputs go to.

        Inputs are of the type that they have, and of the shape where that is one for all samples.
        """
        infos = inferred_infos(self.network)
        feeds = []
        for number in range(len(made.inputs)):
            values = made.values(number, part.inputs)
            for name, value in values.items():
                info = TensorInfo(name, value.dtype, value.shape)
                infos[name] = common(infos[name], info) if number else info
            feeds.append(self.folder / f"{number}.feed.npz")
            save_npz(feeds[-1], values)
        piece = cut(self.network, part.nodes, infos, nothing_stored)
        self.model.write_bytes(piece.proto.SerializeToString())
        return piece.outputs, tuple(feeds), made.files()


class _Made:
    """The tensors that slices have made of each sample, in files."""

    def __init__(self, folder: Path, inputs: Sequence[Path]) -> None:
        """``inputs`` are the values that the model is fed."""
        self.inputs = inputs
        self._folder = folder
        self._files: dict[str, tuple[Path, ...]] = {}
        self._slices = 0

    def files(self) -> tuple[Path, ...]:
        """Where the outputs of the next slice go."""
        self._slices += 1
        return tuple(self._folder / f"{number}.{self._slices}.npz" for number in range(len(self.inputs)))

    def add(self, names: Iterable[str], files: tuple[Path, ...]) -> None:
        """A slice has made these."""
        self._files |= dict.fromkeys(names, files)

    def values(self, number: int, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Some tensors of one sample, its inputs too."""
        opened: dict[Path, NpzFile] = {}
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            path = self._files[name][number] if name in self._files else self.inputs[number]
            file = opened.setdefault(path, NpzFile(path))
            if name in file:
                found[name] = file[name]
        return found
