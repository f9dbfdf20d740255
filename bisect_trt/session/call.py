"""One call of a command, from the command line or from Python: its options, and its run.

A command is a function of a :class:`Call`. It reads its options from the call, opens the run, and
returns the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs

from bisect_trt.errors import ConflictError, InputValuesError, MissingOptionError
from bisect_trt.onnxlib.save import check_output
from bisect_trt.options.compare import CompareOptions, Limits, MetricOptions
from bisect_trt.options.searches import Diagnose, RunOptions
from bisect_trt.options.shared import CheckOptions, Data, General, Loop, Places, Search
from bisect_trt.options.spec import Group, Params, changed, entries, written
from bisect_trt.plugins import FAILED, conflicting_builds
from bisect_trt.probe.user_checks import CommandCheck
from bisect_trt.probe.verdict_cache import VerdictCache
from bisect_trt.probe.workspace import Workspace
from bisect_trt.report.console import Console, is_interactive
from bisect_trt.report.result import Result, environment
from bisect_trt.session.binding import Binding, bind_function, weight_files
from bisect_trt.session.checks import CheckSettings, make_prober, open_ledger, tolerance_options
from bisect_trt.session.eager import KIND, Eager
from bisect_trt.session.loop import enter_step
from bisect_trt.session.oracle import Oracle
from bisect_trt.session.other_model import OtherModel
from bisect_trt.session.paths import Paths, check_files, read_outputs
from bisect_trt.session.places import open_places, require_fit
from bisect_trt.session.record import recorded
from bisect_trt.session.session import Session
from bisect_trt.session.source import Source
from bisect_trt.session.subject import ModelSettings, Subject
from bisect_trt.targets.base import TargetSettings
from bisect_trt.targets.options import Target
from bisect_trt.tensors.compare import check_script
from bisect_trt.tensors.files import files_of, sha256_of
from bisect_trt.tensors.inputs import is_script, split_script
from bisect_trt.tensors.metrics import find_metric, script_file
from bisect_trt.worker.deadline import Deadline
from bisect_trt.worker.guard import claimed_path, claimed_run
from bisect_trt.worker.place import Place


class Call(Struct):
    """The options of one call, its console and result.

    Attributes:
        words: The words of the command line, or the keywords of the Python call, which the run is
            bound to.
        source: The model and its inputs as given in Python; ``None`` on the command line.
        folder: The folder of the run; ``None`` until :meth:`open` has created it.
        function: The Python function that checks candidates, if given.
        kept: Context managers that end with the call: locks of the run's folder.
        paths: The files that it reads and writes.
    """

    command: str
    options: Params
    console: Console
    result: Result
    words: tuple[str, ...] = ()
    source: Source | None = None
    folder: Path | None = None
    resumed: bool = False
    function: Callable[..., object] | None = None
    kept: ExitStack = field(default_factory=ExitStack)
    paths: Paths = field(default_factory=Paths)
    _eager: Eager | OtherModel | None = None

    def __post_init__(self) -> None:
        if self.resumed and self.folder is not None:
            self.paths.recorded = read_outputs(self.folder)

    def __getitem__(self, group: type[Group]) -> Group:
        return self.options[group]

    @property
    def has_check(self) -> bool:
        """Whether a command, a function or another package's oracle decides, rather than a target or a prompt."""
        return (
            bool(self[CheckOptions].check) or self.function is not None or self.oracle is not None
        )

    @property
    def oracle(self) -> Oracle | None:
        """The oracle of another package, if one of its options is given.

        Raises:
            UsageError: Options of two oracles are given.
        """
        oracles = [
            option for option in self.options if isinstance(option, Oracle) and changed(option)
        ]
        if len(oracles) > 1:
            first, second = (oracle.flag for oracle in oracles[:2])
            raise ConflictError(
                f"{first} and {second} both decide whether a candidate fails; drop one."
            )
        return next(iter(oracles), None)

    @property
    def _reference(self) -> str | None:
        options = self[Diagnose] if Diagnose in self.options else self[RunOptions]
        return options.reference

    def eager(self, subject: Subject) -> Eager | OtherModel | None:
        """Return the PyTorch module or the other model that is the reference of a model, if one is given.

        Raises:
            UnavailableError: The other model cannot be read.
            UsageError: ``--reference`` names none, or one that does not fit.
        """
        reference = self._reference
        if reference is None:
            return None if self.source is None else self.source.eager
        if self._eager is None:
            self._eager = (
                Eager.load(reference)
                if is_script(reference)
                else OtherModel.load(Path(reference), subject)
            )
        return self._eager

    def may_write(self, *paths: Path, overwrite: bool) -> None:
        """Check that files of the answer can be written; see :meth:`Paths.may_write`."""
        self.paths.may_write(paths, overwrite=overwrite)

    def deciding(self, *, bounded: bool = True) -> tuple[MetricOptions | None, Limits | None]:
        """Return the metric or the limits that decide whether a candidate fails, if one of these does.

        Raises:
            UsageError: Options conflict, or the metric does not exist.
        """
        metric = self[MetricOptions]
        limits = self[Limits].check()
        metric.check(bounded=bounded)
        decisive = [words[0] for group in (metric, self[Limits]) if (words := written(group))]
        conflicting = [
            *decisive[1:],
            *written(self[CompareOptions])[:1],
            *["--check" if self.oracle is None else self.oracle.flag] * self.has_check,
            *["--reference"] * (self._reference is not None),
        ]
        if decisive and conflicting:
            raise ConflictError(
                f"{decisive[0]} and {conflicting[0]} each decide whether a candidate fails; drop one."
            )
        if metric.metric is None:
            return None, limits
        # An unknown metric is refused here, before the run is opened.
        find_metric(metric.metric, lower_is_better=metric.lower_is_better)
        return metric, None

    def check(self, target: TargetSettings | None) -> CheckSettings:
        """Return the check: a function, a command, a target or the user at a prompt.

        Raises:
            UsageError: An option of the check is wrong, or has no effect.
        """
        options, (metric, limits) = self[CheckOptions], self.deciding()
        if target is None and not self.has_check:
            self._refuse_without_check()
        if self.function is not None and target is not None:
            raise ConflictError(f"target='{target.runtime}' has no effect beside check; drop one.")
        if target is None and (measured := metric or limits) is not None:
            raise MissingOptionError(
                f"{written(measured)[0]} measures a target; add one, such as --onnxrt."
            )
        if options.candidate is not None:
            # The workspace refuses to replace files of other programs.
            check_output(options.candidate, overwrite=True)
        self._require_one_judge()
        argv = CommandCheck.parse(options.check) if options.check else ()
        for name in () if self.has_check else ("fail_regex", "fail_code", "ignore_fail_code"):
            if getattr(options, name):
                raise MissingOptionError(f"--{name.replace('_', '-')} needs a --check command.")
        tolerance = tolerance_options(self[CompareOptions], target)
        return CheckSettings(
            options, argv, target, tolerance, metric, limits, self.function, self.oracle
        )

    def _require_one_judge(self) -> None:
        """Refuse a command or a function beside an oracle of another package, and options that it does not use."""
        oracle = self.oracle
        if oracle is None:
            return
        unused = [] if self.function is None else ["check"]
        if not oracle.takes_command:
            # How long a candidate may take is any check's.
            unused += written(replace(self[CheckOptions], timeout=None))
        if not oracle.takes_tolerances:
            unused += written(self[CompareOptions])
        if unused:
            raise ConflictError(
                f"{oracle.flag} decides whether a candidate fails, so {unused[0]} has no effect; drop one."
            )

    def _refuse_without_check(self) -> None:
        """Refuse a call without a check, before the reference runs, where no prompt can be answered."""
        if self.source is not None:
            raise MissingOptionError("no check: give check (a function or a command) or target.")
        if not is_interactive():
            raise MissingOptionError(
                "no check: give a --check command, or a target such as --onnxrt. Prompts for each candidate need a terminal."
            )

    def open(
        self,
        check: CheckSettings | None = None,
        files: Iterable[Path] = (),
        *,
        input_shapes: Mapping[str, tuple[int, ...]] | None = None,
        fresh_process: bool = False,
    ) -> OpenCall:
        """Open the run: its folder, bound to everything that its verdicts depend on, its model and its places.

        Args:
            check: The check, which may write candidates to a path of its own.
            files: More files that the run depends on.
            input_shapes: Shapes by input that override ``--input-shapes``.
            fresh_process: Whether each probe gets a worker of its own, whatever the options say.

        Raises:
            UnavailableError: A place is not available, or the model cannot be exported.
            UsageError: The folder cannot be created, the resumed run is bound to something else, or
                an option is wrong.
        """
        deadline = Deadline(self[Search].max_time)
        for problem in filter(None, (*FAILED, conflicting_builds())):
            self.console.warn(problem)
        group: Any = next(iter(self.options))
        source = self.source or Source(group.model)
        data = replace(self[Data], input_shapes={**self[Data].input_shapes, **(input_shapes or {})})
        # The files are read before there is a folder.
        files = [*self._files(), *files]
        for file in files:
            self.paths.read(file, "a file that an option names")
        files += check_files(self[CheckOptions].check)
        fixed_path = None if check is None else check.fixed_path
        if fixed_path is not None:
            self.paths.write(fixed_path, "--candidate")
        places = open_places(self[Places], self.console, deadline)
        self.kept.enter_context(claimed_path(fixed_path))
        new = self.folder is None
        self.folder = self.folder or Workspace.new_folder(self.command, source.named)
        workspace = Workspace(self.folder, fixed_path)
        if new or self.source is not None:
            # `resume` has locked its folder.
            self.kept.enter_context(claimed_run(self.folder))
        self.kept.enter_context(self.paths.recording(self.folder))
        model, exported = source.place(ModelSettings(source.named, data), self.folder)
        if exported is not None:
            self.console.say(
                f"Exported by torch.onnx.export (dynamo) of PyTorch {exported['torch']}"
            )
            self.result.export = exported
        python = self.source is not None
        files += model.data.load_inputs if python else ()
        binding = Binding.of(self.words, model.path, files, data.external_data_dir, python=python)
        if self.function is not None:
            binding.files.update(bind_function(self.function))
        if self.resumed:
            Binding.read(self.folder).check(binding, self.folder)
        else:
            binding.write(self.folder)
        # A process that has run other models has memory to spare.
        fresh_process |= self[Target].fresh_process or bool(self[Limits].memory_limit_of)
        return OpenCall(self, model, workspace, places, deadline, fresh_process, binding)

    def _files(self) -> list[Path]:
        """Return the files named by options.

        Raises:
            UsageError: A script does not exist.
        """
        data = self[Data]
        metric = self[MetricOptions]
        compare = self[CompareOptions]
        files = [file for path in data.load_inputs for file in files_of(path)]
        if missing := next((file for file in files if not file.exists()), None):
            raise InputValuesError(
                f"{missing}: no such file; give a file that `polygraphy run` or `numpy.savez` wrote."
            )
        if data.data_loader_script is not None:
            files.append(split_script(data.data_loader_script, "", "data-loader")[0])
        if (reference := self._reference) is not None:
            files.append(split_script(reference, "make", KIND)[0])
        if compare.compare_func_script is not None:
            files.append(check_script(compare.compare_func_script))
        if metric.metric is not None:
            files += script_file(metric.metric)
        files += [] if self.oracle is None else [Path(inspect.getfile(type(self.oracle)))]
        return [*files, *self[Target].files()]


class OpenCall(Struct, frozen=True):
    """A call with an open run.

    Attributes:
        call: The call.
        model: The model file, and how it is read.
        workspace: The folder of the run.
        places: Where targets run; none for this machine.
        deadline: The end of the time that the run may take; it began when the run was opened.
        fresh_process: Whether each probe gets a worker process of its own.
        binding: The files that its verdicts depend on.
    """

    call: Call
    model: ModelSettings
    workspace: Workspace
    places: tuple[Place, ...]
    deadline: Deadline
    fresh_process: bool
    binding: Binding

    def subject(
        self,
        timeout: float | None,
        target: TargetSettings | None = None,
        *,
        older: bool = False,
        judges_export: bool = False,
    ) -> Subject:
        """Return the model, opened for a target or its ``older`` releases; the caller closes it.

        Of a loop it is fed the step that is wrong; that is so beside the module or the other model
        only if the command ``judges_export``.
        """
        # A search by a metric cuts candidates with the first sample; the metric reads the whole set
        # itself.
        limit = None if self.call[MetricOptions].metric is None else 1
        loop = self.call[Loop]
        if loop.state and loop.steps is None:
            raise ConflictError("--state has no effect without --steps.")
        subject = Subject(
            structs.replace(
                self.model,
                most=limit,
                older=older or bool(self.places),
                loop=loop,
                module=is_script(self.call._reference or ""),
            ),
            self.workspace,
            self.call.console,
            fresh_process=self.fresh_process,
            timeout=timeout,
            target=target,
            places=self.places,
            deadline=self.deadline,
        )
        if loop.steps is not None and limit is None:
            result = self.call.result
            tolerance = tolerance_options(self.call[CompareOptions], target)
            with (
                ExitStack() as stack,
                recorded(
                    Session(stack.enter_context(subject), subject.console, result, None), target
                ),
            ):
                eager = self.call.eager(subject) if judges_export else None
                enter_step(subject, target, tolerance, result, eager)
                stack.pop_all()
        return subject

    @contextmanager
    def examined(
        self,
        timeout: float | None,
        target: TargetSettings | None = None,
        require: Callable[[Subject, TargetSettings], None] = require_fit,
    ) -> Iterator[Session]:
        """Open a session without a search, if its target is available and fits; the result is recorded however it ends."""
        with self.subject(timeout, target) as subject:
            session = Session(subject, self.call.console, self.call.result, None)
            with recorded(session, target):
                if target is not None:
                    require(subject, target)
                yield session

    @contextmanager
    def searching(
        self,
        check: CheckSettings,
        subject: Subject | None = None,
        target: TargetSettings | None = None,
        *,
        elsewhere: bool = False,
        fed: bool = True,
    ) -> Iterator[Session]:
        """Open a session with a prober, of a subject or of the model opened for the check's target.

        The result is recorded however it ends. For the other arguments see :func:`make_prober`.
        """
        with ExitStack() as stack:
            subject = subject or stack.enter_context(self.subject(check.timeout, check.target))
            search = self.call[Search]
            console = self.call.console
            cache = None
            if search.cache is not None:
                scope = partial(self._scope, subject)
                cache = VerdictCache(search.cache, scope, proof=search.cache_proof)
            ledger = open_ledger(check, search, subject, console, cache)
            stack.callback(ledger.close)
            prober = make_prober(check, search, subject, ledger, elsewhere=elsewhere, fed=fed)
            session = Session(subject, console, self.call.result, prober)
            if check.oracle is not None:
                by_hand = partial(session.command, "repeat", check, extra=("-n", "1"))
                session = structs.replace(session, probing=replace(prober, by_hand=by_hand))
            stack.callback(session.note_score)
            stack.enter_context(recorded(session, target or check.target))
            yield session

    def _scope(self, subject: Subject) -> list[str]:
        """Return everything that the verdicts of this run depend on, beside the candidate."""
        call = self.call
        files = {Path(name): digest for name, digest in self.binding.files.items()}
        data = call[Data]
        for path in weight_files(self.model.path, data.external_data_dir):
            files[path] = sha256_of(path)
        words = [
            word
            for group in call.options
            if not isinstance(group, General | Places | Search)
            for entry in entries(type(group))
            if not (entry.writes or entry.positional)
            and getattr(group, entry.name) != entry.default
            for word in entry.words(getattr(group, entry.name))
        ]
        runtimes = (str(sorted(runtime.table().items())) for runtime in subject.seen.values())
        return [
            call.command,
            *sorted(files.values()),
            # The same file may lie elsewhere on another machine.
            *(files.get(Path(word), word) for word in words),
            *written(Search(repeat=call[Search].repeat, confidence=call[Search].confidence)),
            *map("=".join, environment().items()),
            *sorted(runtimes),
        ]


def refuse_repeat(call: Call) -> None:
    """Refuse ``--repeat``, which measures the failure rate of one model with one input.

    Raises:
        UsageError: It is given.
    """
    if call[Search].repeat is not None:
        raise ConflictError(
            f"--repeat has no effect in {call.command}, which probes many inputs; `repeat` measures a failure rate."
        )
