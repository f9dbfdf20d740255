"""The weights' files that candidates refer to: in the user's folder as long as all who read them find them there."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from bisect_trt.errors import UsageError
from bisect_trt.graph.copying import copy_file
from bisect_trt.graph.externals import (
    EMBED_LIMIT_BYTES,
    external_files,
    folder_with,
    inner_bytes,
    model_tensors,
    place_of,
    refer_to,
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
        self._homes: dict[str, Path] = {}

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
            self._homes |= dict.fromkeys(external_files(model), self._folder)
            return
        self._note(files, weights.absolute())

    def take_in(self, model: onnx.ModelProto, folder: Path) -> None:
        """Have a model that was written elsewhere find its weights too, to probe what was written.

        Args:
            model: Changed in place where its files are called as others are that candidates read.
            folder: Where it was written.

        Raises:
            UsageError: The run's folder cannot be written.
        """
        folder = folder.resolve()
        files = external_files(model)
        if any(self._homes.get(location, folder).resolve() != folder for location in files):
            for tensor in filter(uses_external_data, model_tensors(model)):
                place = place_of(tensor)
                refer_to(tensor, f"{folder.name}/{place.location}", place.offset, place.length)
            files, folder = external_files(model), folder.parent
        self._note(files, folder)

    def _note(self, files: Iterable[str], folder: Path) -> None:
        """Keep where some files are, for runtimes that look for it too."""
        new = dict.fromkeys(files, folder)
        if new.items() <= self._homes.items():
            return
        self._homes |= new
        note, temporary = self._folder / ELSEWHERE, self._folder / f".{ELSEWHERE}.new"
        homes = dict.fromkeys(home for home in self._homes.values() if home != self._folder)
        try:
            temporary.write_bytes(b"\0".join(map(os.fsencode, homes)))
            temporary.replace(note)
        except OSError as error:
            raise UsageError(f"{note} cannot be written: {error.strerror}; make room.") from error

    def bring(self, model: onnx.ModelProto | Path) -> None:
        """Copy the files that a candidate refers to, and that are not beside the candidates yet.

        Args:
            model: The candidate, or its file; one that is no model refers to none.

        Raises:
            UsageError: They cannot be copied.
        """
        if not self._homes:
            return
        if isinstance(model, Path):
            try:
                model = onnx.load(str(model), load_external_data=False)
            except Exception:  # each of ONNX's formats raises its own; whoever reads it says what is wrong
                return
        with self._lock:
            for location in self._homes.keys() & external_files(model):
                home, place = self._homes[location], self._folder / location
                if home == self._folder:
                    continue
                try:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copy_file(home / location, place)
                except OSError as error:
                    raise UsageError(
                        f"the weights in {home} cannot be copied to {self._folder}: {error.strerror}; make room, or run "
                        "elsewhere."
                    ) from error

    def folder_of(self, model: onnx.ModelProto) -> Path:
        """The folder in which all files of a candidate's weights are."""
        homes = {self._homes[location] for location in external_files(model) if location in self._homes}
        return folder_with(model, [self._folder, *homes]) or next(iter(homes), self._folder)

    def away(self, model: onnx.ModelProto) -> Path | None:
        """The same, where it is not that of the candidates."""
        folder = self.folder_of(model)
        return None if folder == self._folder else folder


def _is_plain(folder: Path, location: str) -> bool:
    """Whether a file is where it seems to be; runtimes refuse what a link leads out of the folder."""
    return (folder / location).resolve() == folder.resolve() / location
