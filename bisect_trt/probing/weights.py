"""The weights' files that candidates refer to: in the user's folder as long as all who read them find them there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import onnx

from bisect_trt.errors import UsageError
from bisect_trt.graph.externals import (
    EMBED_LIMIT_BYTES,
    copy_file,
    external_files,
    inner_bytes,
    share_weights,
)
from bisect_trt.targets.base import ELSEWHERE


class Weights:
    """Where the weights of the candidates in one folder are.

    ONNX wants them beside the model, under no other name and behind no link. A hard link in the run's folder would make the
    user's own file one with two names, which ONNX's loader refuses to read from then on; so it is the file itself that is read,
    by runtimes that can be told where it is, or a copy, which is made when the first one asks that cannot: a check command, say.
    """

    def __init__(self, folder: Path) -> None:
        """``folder`` is that of the candidates."""
        self._folder = folder
        self._lock = threading.Lock()
        self._source: Path | None = None
        self._away: set[str] = set()

    def refer(self, model: onnx.ModelProto, path: Path, weights: Path) -> None:
        """Have candidates of a model find its weights; those inside it go into a file, if they are large.

        Args:
            model: Changed in place.
            path: Where it was read from.
            weights: The folder with its external files.

        Raises:
            UsageError: They cannot be copied.
        """
        files, inside = external_files(model), sum(map(inner_bytes, model.graph.initializer))
        if not files or inside > EMBED_LIMIT_BYTES or not all(_is_plain(weights, location) for location in files):
            share_weights(model, path, self._folder, weights)
            return
        try:
            (self._folder / ELSEWHERE).write_bytes(os.fsencode(weights.absolute()))
        except OSError as error:
            raise UsageError(f"{self._folder / ELSEWHERE} cannot be written: {error.strerror}; make room.") from error
        self._source, self._away = weights.absolute(), set(files)

    def bring(self, model: onnx.ModelProto | Path) -> None:
        """Copy the files that a candidate refers to, and that are not beside the candidates yet.

        Args:
            model: The candidate, or its file; one that is no model refers to none.

        Raises:
            UsageError: They cannot be copied.
        """
        if self._source is None or not self._away:
            return
        if isinstance(model, Path):
            try:
                model = onnx.load(str(model), load_external_data=False)
            except Exception:  # each of ONNX's formats raises its own; whoever reads it says what is wrong
                return
        with self._lock:
            try:
                for location in self._away.intersection(external_files(model)):
                    place = self._folder / location
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy_file(self._source / location, place)
                    self._away.remove(location)
            except OSError as error:
                raise UsageError(
                    f"the weights in {self._source} cannot be copied to {self._folder}: {error.strerror}; make room, or run "
                    "elsewhere."
                ) from error

    def folder_of(self, model: onnx.ModelProto) -> Path:
        """The folder in which all files of a candidate's weights are."""
        if self._source is None or all((self._folder / location).exists() for location in external_files(model)):
            return self._folder
        return self._source

    def away(self, model: onnx.ModelProto) -> Path | None:
        """The same, where it is not that of the candidates."""
        folder = self.folder_of(model)
        return None if folder == self._folder else folder


def _is_plain(folder: Path, location: str) -> bool:
    """Whether a file is where it seems to be; runtimes refuse what a link leads out of the folder."""
    return (folder / location).resolve() == folder.resolve() / location
