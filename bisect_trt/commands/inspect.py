"""``inspect``: what a model, an engine, saved values or the choices of a build hold."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from bisect_trt.commands.build_choices import choices_tree, describe_choices
from bisect_trt.commands.call import Call
from bisect_trt.commands.inspection import (
    FileKind,
    data_tree,
    describe_data,
    describe_engine,
    describe_model,
    engine_tree,
    guess_kind,
    model_tree,
)
from bisect_trt.errors import UsageError
from bisect_trt.options.choices import Show
from bisect_trt.options.commands import Inspect
from bisect_trt.report.result import Result
from bisect_trt.report.text import print_tree
from bisect_trt.worker.guard import scratch

_FITTING = {
    FileKind.MODEL: {Show.LAYERS, Show.ATTRS, Show.WEIGHTS},
    FileKind.ENGINE: {Show.LAYERS},  # they are always shown
    FileKind.DATA: {Show.VALUES},
    FileKind.TACTICS: {Show.LAYERS},
}


def run(call: Call) -> Result:
    """Show the contents of a file.

    Raises:
        UnavailableError: The file cannot be read, or is an engine and there is no TensorRT.
        UsageError: An option does not apply to a file of this kind.
    """
    own, result = call[Inspect], call.result
    kind, file = read_words(own.said, own.path)
    if kind is not FileKind.MODEL and (own.external_data_dir or own.ignore_external_data):
        flag = "--external-data-dir" if own.external_data_dir else "--ignore-external-data"
        raise UsageError(f"{flag} is about models, and this is to be read as {kind.value}; leave it out.")
    if odd := set(own.show) - _FITTING[kind]:
        raise UsageError(
            f"--show {min(word.value for word in odd)} does not apply to {kind.value}; choose from: "
            f"{', '.join(sorted(word.value for word in _FITTING[kind]))}."
        )
    # A scratch folder stays behind when the command is killed, so there is one only where it is needed.
    with scratch() if kind is FileKind.ENGINE else nullcontext("") as folder:
        if kind is FileKind.MODEL:
            words = {word.value for word in own.show}
            plain = describe_model(file, words, own.external_data_dir, structure=own.ignore_external_data)
            tree = model_tree(str(file), plain)
        elif kind is FileKind.DATA:
            plain = describe_data(file, own.num_items if own.show else None)
            tree = data_tree(str(file), plain)
        elif kind is FileKind.TACTICS:
            plain = describe_choices(file)
            tree = choices_tree(str(file), plain)
        else:
            plain = describe_engine(file, Path(folder))
            tree = engine_tree(str(file), plain)
    print_tree(tree)
    result.extra[kind.value] = plain
    result.status, result.minimality = "found", "1-minimal"
    return result


def read_words(said: str | None, path: Path | None) -> tuple[FileKind, Path]:
    """The kind and the file of ``KIND FILE`` or of ``FILE``.

    Raises:
        UnavailableError: The file is not there.
        UsageError: There is no such kind, or no file, or the file does not show its kind.
    """
    kinds = [kind.value for kind in FileKind]
    if said is None:
        raise UsageError("there is no file to inspect; name one.")
    if path is not None:
        if said not in kinds:
            raise UsageError(f"there is nothing to inspect as '{said}'; write {', '.join(kinds)}, or the file alone.")
        return FileKind(said), path
    if said in kinds and not Path(said).exists():
        raise UsageError(f"there is no file to inspect as {said}; name one.")
    return guess_kind(Path(said)), Path(said)
