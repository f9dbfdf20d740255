"""The Python functions that search: ``reduce``, ``cause``, ``releases``, ``repeat``, ``precision``, ``sweep``, ``samples``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bisect_trt.api.keywords import called, check_or_inputs, documented, target_second

if TYPE_CHECKING:
    from bisect_trt.api.types import Check, Inputs, Model, TargetName, Tolerance
    from bisect_trt.reporting.result import Result


@documented
def reduce(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    output: str | Path | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the smallest model that still fails.

    Args:
        check: A function (see :class:`~bisect_trt.probing.function.FunctionCheck`: given the candidate's path, ``True`` or
            an ``AssertionError`` says that it fails), or a command as after ``--check``. Without it ``target`` is compared
            with the reference. Values, a path, or the name of a ``.npz`` or ``.json`` file in its place are ``inputs``.
        output: Where the reduced model goes; in the run's folder if not given.

    Returns:
        The result; its status is ``not_reproduced`` if the model does not fail.
    """
    check, inputs = check_or_inputs(check, inputs)
    return called("reduce", **locals())


@documented
@target_second
def cause(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName = "onnxrt",
    *,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find which pass, option or tactic of the target does it.

    Returns:
        The result; its ``cause`` is a list of alternatives, each a list of switches that are enough to turn.
    """
    return called("cause", **locals())


def _case(model: Model, inputs: Inputs | None) -> tuple[Model, Inputs | None]:
    """A model and what it is fed; those of a reproducer, where its folder is named."""
    from bisect_trt.workflows.from_options import case_of  # noqa: PLC0415 - NumPy and ONNX are imported by the first call

    if not isinstance(model, str | Path):
        return model, inputs
    model, values = case_of(Path(model))
    return model, values[0] if values and inputs is None else inputs


@documented
def releases(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the release of the target in which a failure appeared, and the one in which it went.

    Args:
        model: The model, or its path, or the folder of a reproducer.
        check: A command as after ``--check``, with ``{python}`` in it for the interpreter of a release. Without it ``target``
            is compared with the reference.
        target: The runtime whose releases are asked.
        **options: ``from_`` for ``--from``, ``find_all`` for ``--all``, ``beside`` for ``--with``.

    Returns:
        The result; ``extra`` has ``releases``, ``first_failing`` and ``first_passing``. Its status is ``not_reproduced`` if no
        release fails.

    Raises:
        UnavailableError: No release says anything.
    """
    check, inputs = check_or_inputs(check, inputs)
    model, inputs = _case(model, inputs)
    return called("releases", **locals())


@documented
def repeat(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Build or run a model again and again: how often it fails, and what the bad builds choose.

    Args:
        check: What says good or bad; see :func:`reduce`. Beside a target that makes engines, a command judges those.
        **options: ``number`` is ``-n``.

    Returns:
        The result; its ``extra`` has ``runs``, ``good``, ``bad``, ``rate``, ``interval`` and ``choices``.
    """
    check, inputs = check_or_inputs(check, inputs)
    return called("repeat", **locals())


@documented
def precision(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    low: Literal["fp16", "bf16", "int8", "fp8", "int4"] = "fp16",
    target: TargetName | None = None,
    output: str | Path | None = None,
    inputs: Inputs | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the fewest nodes that have to stay in fp32.

    Args:
        low: What the rest is to run in.
        output: Where the mixed model goes; in the run's folder if not given.

    Returns:
        The result; ``keep_fp32`` are the nodes, ``artifacts["mixed"]`` is the model.
    """
    check, inputs = check_or_inputs(check, inputs)
    options |= {} if options.get("ladder") else {low: True}  # a ladder names its own
    del low
    return called("precision", **locals())


@documented
@target_second
def sweep(
    model: Model,
    inputs: Inputs | None = None,
    target: TargetName | None = None,
    *,
    shapes: str | list[str],
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find the sizes at which the target goes wrong.

    Args:
        inputs: What the model is fed, repeated or cut at other sizes; random values if not given.
        target: The runtime under suspicion; ``onnxrt`` where neither it nor ``check`` is given.
        shapes: Inputs with the sizes of their dimensions, as after ``--shapes``: ``x:[1..64,3,224,224]``.
        **options: ``check`` may be a function too, see :func:`reduce`. It is given the model with its
            dimensions free, and the inputs of a size.

    Returns:
        The result; ``extra["sweep"]`` has what was tried. Its status is ``not_reproduced`` if no size fails.

    Raises:
        UnavailableError: No size says anything.
    """
    check: Check | None = options.pop("check", None)
    target = "onnxrt" if target is None and check is None else target
    return called("sweep", **locals())


@documented
def samples(
    model: Model,
    check: Check | Inputs | None = None,
    *,
    target: TargetName | None = None,
    inputs: Inputs | None = None,
    output: str | Path | None = None,
    atol: Tolerance | None = None,
    rtol: Tolerance | None = None,
    fp16: bool = False,
    verbose: bool | int = False,
    overwrite: bool = False,
    run: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - of many types
) -> Result:
    """Find which of many inputs fail, what they have in common, and the smallest that still fails.

    Args:
        inputs: The samples, or their file; random ones if not given (``iterations=`` says how many).
        output: Where the smallest failing input goes; in the run's folder if not given.

    Returns:
        The result; ``extra["samples"]`` has which fail. Its status is ``not_reproduced`` if none does.

    Raises:
        UnavailableError: No sample says anything.
    """
    check, inputs = check_or_inputs(check, inputs)
    return called("samples", **locals())
