"""What is left of a diagnosis by a metric: the set, a script that scores the model on it, and the text of a report.

No piece of the model has a metric, so the script is about the whole of it, which stays where it is. It asks bisect-trt, as
its reader will; what it cannot show when it is tried is said.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from bisect_trt import __version__
from bisect_trt.commands.session import Session
from bisect_trt.commands.settings import MetricSettings
from bisect_trt.commands.trials import carry
from bisect_trt.errors import UsageError
from bisect_trt.probe.candidate import Candidate
from bisect_trt.probe.metric_check import MetricCheck, Scale
from bisect_trt.report.culprits import describe_nodes
from bisect_trt.report.environment import environment
from bisect_trt.report.reproducer import FILES, ISSUE, SCRIPT
from bisect_trt.report.script import ALONE
from bisect_trt.report.text import block, code, plain, prose, table
from bisect_trt.targets.settings import TargetSettings
from bisect_trt.tensors.inputs import DataOptions
from bisect_trt.tensors.metrics import Evaluation, script_file
from bisect_trt.worker.process import run_to_end

DATA, LOADER = "data", "data.py"
_MOST_BYTES = 64 << 20
"""A set that is larger stays where it came from."""
_PATIENCE = 3600.0
_LOADER = '''"""The set that was scored: {count} samples{labels}, for --data-loader-script."""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent / "{data}"


def load_data():
    for number in range({count}):
        inputs = dict(np.load(FOLDER / f"given-{{number}}.npz"))
        labels = FOLDER / f"labels-{{number}}.npz"
        if not labels.exists():
            yield inputs
            continue
        named = dict(np.load(labels))
        yield inputs, named.get("", named)
'''
_RUN = '''"""Scores the model: python {script} [MODEL.onnx [options of `bisect-trt run`]]

1: the metric is past its bound, as it was; 0: it is not; anything else: that cannot be told. Needs bisect-trt ({version}).
"""

{alone}
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = sys.argv[1] if len(sys.argv) > 1 else str((HERE / {model!r}).resolve())
OPTIONS = {options!r}

words = [str(HERE / word[1:]) if word.startswith("\\0") else word for word in OPTIONS]
words = [sys.executable, "-m", "bisect_trt", "run", MODEL, *words, *sys.argv[2:]]
raise SystemExit(subprocess.run(words).returncode)
'''
"""A word that begins with a zero byte is a file beside the script."""


def leave_metric(
    investigation: Session, metric: MetricSettings, target: TargetSettings, answer: Candidate, folder: Path
) -> list[Path]:
    """Write the set, the script and the report; try the script.

    Returns:
        The files.

    Raises:
        UsageError: The folder cannot be written.
    """
    subject, console, check = investigation.subject, investigation.console, investigation.prober.runner.check
    assert isinstance(check, MetricCheck)
    try:
        carried, files = carry(target, folder / FILES)
        where, words, kept = _data(check.scale.data, subject.settings.data, folder)
        words += _metric_words(metric, folder, kept)
        away = subject.settings.external_data_dir
        plainly = replace(
            subject.settings, data=DataOptions(), external_data_dir=None if away is None else away.absolute()
        )
        shown = [*_beside(carried.flags(), files), *plainly.words(), *words]
        script, model = folder / SCRIPT, os.path.relpath(subject.settings.path, folder)
        script.write_text(
            _RUN.format(alone=ALONE, script=SCRIPT, version=__version__, model=model, options=shown), "utf-8"
        )
        tried, whole = _tried(investigation, script)
        if whole is not None:
            investigation.result.extra["metric"]["whole"] = whole
        command = ["bisect-trt", "run", model, *(word.removeprefix("\0") for word in shown)]
        text = _issue(investigation, check.scale, target, answer.proto, where, tried, shlex.join(map(plain, command)))
        (folder / ISSUE).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror or error}; make room.") from error
    console.answer(f"  {script}: scores the whole model; {tried}")
    console.answer(f"  {where}")
    return [script, folder / ISSUE, *kept, *(folder / name for name in files)]


def _tried(investigation: Session, script: Path) -> tuple[str, float | str | None]:
    """Run the script as its reader will: what came of it, in words, and the whole model's number if it says one."""
    log = investigation.subject.workspace.scratch("metric-trial.log")
    found = log.with_name("metric-trial.json")
    model = str(investigation.subject.settings.path.absolute())
    words = [sys.executable, str(script.absolute()), model, "--json", str(found.absolute())]
    end = run_to_end(words, log=log, environment={}, timeout=_PATIENCE, cwd=log.parent)
    measured = json.loads(found.read_text(encoding="utf-8")).get("metric") if found.is_file() else None
    whole = None if measured is None else measured["candidate"]
    if end.code == 1 and whole is not None:
        return "run here, it shows the drop", whole
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    tried = f"run here, it ends with {end.describe()}{f': {last[-1]}' if last else ''}"
    investigation.console.warn(f"{script} does not show the drop: {tried}")
    return tried, whole


def _data(data: Evaluation, given: DataOptions, folder: Path) -> tuple[str, list[str], list[Path]]:
    """Keep the set in the folder, unless it is large; where it is, the options that read it, and its files."""
    files = [path for path in sorted(data.folder.iterdir()) if path.name.startswith(("given-", "labels-"))]
    size = sum(path.stat().st_size for path in files)
    labels = " with their labels" if data.labelled else ""
    if size > _MOST_BYTES:
        words = []
        if given.data_loader_script is not None:
            words = ["--data-loader-script", str(given.data_loader_script)]
        elif given.load_inputs:
            words = ["--load-inputs", *(str(path.absolute()) for path in given.load_inputs)]
        else:
            words = ["--iterations", str(data.count), "--seed", str(given.seed)]
        return (
            f"the {data.count} samples are {size >> 20} MiB and not kept here: {shlex.join(words)} gives them",
            words,
            [],
        )
    (folder / DATA).mkdir(exist_ok=True)
    kept = [folder / DATA / path.name for path in files]
    for path, to in zip(files, kept, strict=True):
        shutil.copyfile(path, to)
    loader = folder / LOADER
    loader.write_text(_LOADER.format(count=data.count, labels=labels, data=DATA), encoding="utf-8")
    return (
        f"{folder / DATA}: the {data.count} samples{labels}",
        ["--data-loader-script", f"\0{LOADER}"],
        [loader, *kept],
    )


def _metric_words(metric: MetricSettings, folder: Path, kept: list[Path]) -> list[str]:
    """The options of the metric; a script of the user's is copied, and added to what is kept."""
    asked, options = metric.asked, metric.options
    for path in script_file(asked):
        kept.append(folder / f"metric-{path.name}")
        shutil.copyfile(path, kept[-1])
        asked = f"\0metric-{path.name}{asked.removeprefix(str(path))}"
    return replace(options, metric=asked).words()


def _beside(words: Sequence[str], files: Sequence[str]) -> list[str]:
    """Options of which some are files beside the script."""
    return [f"\0{word}" if word in files else word for word in words]


def _issue(
    investigation: Session,
    scale: Scale,
    target: TargetSettings,
    piece: onnx.ModelProto,
    where: str,
    tried: str,
    command: str,
) -> str:
    """The text of a report."""
    subject, metric = investigation.subject, investigation.result.extra["metric"]
    say, name, file = scale.metric.say, scale.metric.name, code(subject.settings.path.name)
    reference, seen = say(float(metric["reference"])), say(float(metric.get("whole", metric["candidate"])))
    bound = f"{'at most' if metric['lower_is_better'] else 'at least'} {say(float(metric['bound']))}"
    about = f"{file} on {prose(target.describe())}: {prose(name)} is {seen} on {metric['of']} samples. "
    about += f"ONNX Runtime on the CPU, graph optimisations off, has {reference}, and {bound} was asked for."
    model = {"file": subject.settings.path.name, "sha256": subject.sha256, "nodes": str(len(subject.network.nodes))}
    parts = [
        f"# {prose(target.target.title)}: {prose(name)} drops from {reference} to {seen}",
        about,
        "## Environment",
        table(environment()),
        "## Steps to reproduce",
        f"{code(f'python {SCRIPT} MODEL.onnx')} scores the whole model; {prose(tried)}. It is this command, in this folder:",
        block(command),
        f"The model is not in this folder, but {code('model.onnx')}, the layers that cost the metric. {prose(where)}.",
        table(model),
        "## The layers that cost it",
        "With these on the target and the reference for all others it is past the bound.",
        describe_nodes(piece, list(piece.graph.node)),
        *_curve(metric.get("layers") or [], name),
    ]
    if "fixed" in metric:
        kept = investigation.result.extra.get("keep_fp32") or []
        parts += [
            "## What mends it",
            f"{len(kept)} nodes in fp32: {prose(name)} is {say(float(metric['fixed']))} then.",
        ]
    return "\n\n".join(parts) + "\n"


def _curve(layers: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """How the metric falls as the target computes more of the model."""
    if not layers:
        return []
    rows = []
    for entry in layers:
        node = entry["node"]
        last = "" if node is None else f" up to {prose(node['op'])} {code(node['name'] or node['outputs'][0])}"
        word = "within the bound" if entry["passed"] else "past it"
        rows.append(
            f"- {entry['units']} units on the target{last}: {prose(name)} {float(entry['candidate']):.6g}, {word}"
        )
    return ["## Where it falls", "\n".join(rows)]
