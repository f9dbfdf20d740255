"""A PyTorch module as the reference of its own export."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Real
from types import FrameType
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bisect_trt.errors import InputValuesError, ScriptError, quoted
from bisect_trt.onnxlib.nodes import INSIDE_TORCH, Node
from bisect_trt.tensors.files import Values
from bisect_trt.tensors.info import dtype_from_name, is_extension
from bisect_trt.tensors.inputs import script_attribute, split_script, user_code

KIND = "reference"
"""The kind of script, in messages."""
_NO_MODEL = re.compile(rf"<|.*(?:{INSIDE_TORCH.pattern}|-packages[\\/]numpy[\\/])")
"""Files without code of a model."""
Variables: TypeAlias = set[tuple[str, float]]
"""Variables with numbers, each with its value."""
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of ``forward``, in order and by name."""


class Operation(NamedTuple):
    """An operation of a module that depends on the module's inputs.

    Attributes:
        line: ``file:line`` of the model's code, where known.
        reads: The numbers of the operations that computed its arguments.
        same: The tensors of the exported model that have the values of one of its results.
        is_number: Whether it takes values of a tensor out of PyTorch; an exporter that traces stores these.
        is_decision: Whether Python decides by such a value which lines run.
        node: The node that it is, in another ONNX model.
    """

    line: str | None
    reads: Collection[int]
    same: Collection[str]
    is_number: bool = False
    is_decision: bool = False
    node: Node | None = None


class Numbers:
    """The numbers that a module computes outside of PyTorch, of values that left it."""

    def __init__(self) -> None:
        """There are none."""
        self._makers: dict[object, int] = {}  # by value
        self._watched = dict[tuple[FrameType, int], tuple[int, Variables]]()

    def add(self, value: float, operation: int) -> None:
        """Add a number and its negative, with the number of the operation that it is of."""
        self._makers |= dict.fromkeys((value, -value), operation)

    def watch(self, frame: FrameType, operation: int) -> None:
        """Take each number that a variable gets by the end of the line where a frame is for one of an operation."""
        for each in _calling(frame):
            self._watched[each, operation] = (each.f_lineno, _variables(each))

    def read(self, frame: FrameType, given: Iterable[object]) -> set[int]:
        """Return the operations that the numbers among the arguments of another are of.

        Args:
            frame: Where that other is.
            given: Its arguments.
        """
        reads = set[int]()
        running = {*_calling(frame)}
        for (scope, operation), (line, before) in [*self._watched.items()]:
            if scope not in running or scope.f_lineno != line:
                # Now a variable has its value, which arithmetic may have changed.
                del self._watched[scope, operation]
                for _, value in _variables(scope) - before:
                    self.add(value, operation)
            elif scope is frame:
                # What else this line computes may have the number without a variable.
                reads.add(operation)
        return reads | {
            self._makers[each] for each in given if _is_telling(each) and each in self._makers
        }


class Eager(Struct, frozen=True):
    """A module that PyTorch runs, in evaluation mode.

    Attributes:
        module: The module.
        title: The module in messages.
        example: Arguments of ``forward``; their tensors are replaced by the inputs of the exported
            model in order; without it these are given by name, or in order where a name is no
            parameter.
    """

    module: Any
    title: str
    example: Arguments | None = None

    @classmethod
    def load(cls, script: str) -> Eager:
        """Return the module that ``FILE:NAME`` is or returns; the name is ``make`` if missing.

        Raises:
            UsageError: There is none.
        """
        path, name = split_script(script, "make", KIND)
        with user_code(path, KIND):
            import torch  # noqa: PLC0415 - PyTorch may be missing

            module = script_attribute(path, name, KIND)
            module = module if isinstance(module, torch.nn.Module) else module()
            if not isinstance(module, torch.nn.Module):
                raise ScriptError(f"{path}: '{name}' neither is nor returns a torch.nn.Module")
        return cls(module, f"{path.name}:{name}")

    def run(self, sample: Values, names: Sequence[str]) -> Values:
        """Return the outputs by the names that they have in the exported model.

        Args:
            sample: The inputs of the exported model.
            names: Its outputs, in order.

        Raises:
            UsageError: The module fails, or has another number of outputs.
        """
        outputs = self._call(self._bind(sample), nullcontext())
        if len(outputs) != len(names):
            raise InputValuesError(
                f"{self.title} returns {len(outputs)} tensors, and the exported model {len(names)}."
            )
        return {name: to_array(tensor) for name, tensor in zip(names, outputs, strict=True)}

    def trace(
        self, sample: Values, find: Callable[[NDArray[Any]], Collection[str]]
    ) -> tuple[list[Operation], list[int]]:
        """Return the operations that the module runs, and for each output the number of the one that computes it.

        Args:
            sample: The inputs of the exported model, by name.
            find: Returns the tensors of the exported model that have some values.
        """
        torch: Any = sys.modules["torch"]
        operations = [Operation(None, (), sample.keys())]
        makers: dict[int, int] = {}  # by storage; a view is made by what made its base
        numbers = Numbers()

        def leave(frame: FrameType, reads: Collection[int]) -> None:
            numbers.watch(frame, len(operations))
            operations.append(Operation(_line(frame), reads, (), is_number=True))

        class Recorder(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(
                self,
                func: Any,  # noqa: ANN401 - PyTorch may be missing
                _types: object,
                args: tuple[object, ...] = (),
                kwargs: Mapping[str, object] | None = None,
            ) -> object:
                read = {*map(_storage, tensors_of((args, kwargs)))}
                frame = _model_frame()
                reads = {makers[each] for each in read & makers.keys()}
                reads |= numbers.read(frame, (*args, *(kwargs or {}).values()))
                result = func(*args, **(kwargs or {}))
                if reads and _is_telling(result):
                    numbers.add(result, len(operations))
                    leave(frame, reads)
                elif reads and isinstance(result, bool):
                    operations.append(Operation(_line(frame), (), (), is_decision=True))
                in_place = func._schema.is_mutable
                results = tensors_of(result)
                made = [
                    _whole(each) if in_place else each
                    for each in results
                    if in_place or _storage(each) not in read & makers.keys()
                ]
                for each in made:
                    makers.pop(_storage(each), None)
                if reads:
                    makers.update(dict.fromkeys(map(_storage, made), len(operations)))
                    # A view is of its base's maker, and is a node of the exported model.
                    same = set[str]().union(*(find(to_array(each)) for each in made or results))
                    operations.append(Operation(_line(frame), reads, same))
                return result

        class Leaving(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
            """Records where values leave PyTorch without an operation."""

            def __torch_function__(
                self,
                func: Any,  # noqa: ANN401 - as above
                _types: object,
                args: tuple[object, ...] = (),
                kwargs: Mapping[str, object] | None = None,
            ) -> object:
                frame = _model_frame()
                # Not the values that this class and the search for them read.
                read = tensors_of(args) if func in leaving and _line(frame) else ()
                if reads := {*map(_storage, read)} & makers.keys():
                    leave(frame, {makers[each] for each in reads})
                return func(*args, **(kwargs or {}))

        leaving = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
        arguments = self._bind(sample)
        makers |= dict.fromkeys(map(_storage, tensors_of(arguments)), 0)
        with Leaving():
            outputs = self._call(arguments, Recorder())
        return operations, [makers.get(_storage(output), 0) for output in outputs]

    def _bind(self, sample: Values) -> Arguments:
        """Return the inputs of the exported model as arguments of the module."""
        torch: Any = sys.modules["torch"]
        tensors = {
            name: torch.tensor(value.astype(np.float32) if is_extension(value.dtype) else value)
            for name, value in sample.items()
        }
        # An export in 16 bits is of a module in fp32 as often as of one in 16 bits.
        like = next(self.module.parameters(), torch.empty(0))
        tensors |= {
            name: each.to(like) for name, each in tensors.items() if each.is_floating_point()
        }
        if self.example is None:
            signature = inspect.signature(self.module.forward)
            every = (*tensors.values(),)
            named = {name: tensors.pop(name) for name in signature.parameters if name in tensors}
            # The exporter has named the others, in order.
            unnamed = [name for name in signature.parameters if name not in named]
            both = named | dict(zip(unnamed, tensors.values(), strict=False))
            # ``*past`` takes the rest, which goes by no name.
            given: Arguments = ((), both) if named and len(both) == len(every) else (every, {})
            try:
                signature.bind(*given[0], **given[1])
            except TypeError as error:
                raise InputValuesError(
                    f"{self.title}: {error}; the exported model has the inputs {quoted(sample)}. It holds the example's values "
                    "of an input that it lacks. To compare the two, give values of that input too (--load-inputs)."
                ) from error
            return given
        remaining = iter(tensors.values())
        bound: Arguments = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda one: next(remaining).to(one), self.example
        )
        return bound

    def _call(self, arguments: Arguments, watch: AbstractContextManager[object]) -> list[Any]:
        """Return the tensors that the module returns.

        Raises:
            UsageError: It raises something.
        """
        torch: Any = sys.modules["torch"]
        try:
            with evaluating(self.module), torch.no_grad(), watch:
                return tensors_of(self.module(*arguments[0], **arguments[1]))
        except Exception as error:
            # The user's module may raise anything.
            raise ScriptError(
                f"{self.title} raised {type(error).__name__}: {error!s:.300}"
            ) from error


@contextmanager
def evaluating(module: Any) -> Iterator[None]:  # noqa: ANN401 - a module without types
    """Put a module into evaluation mode, and restore the mode of each part."""
    modes = [(child, child.training) for child in module.modules()]
    try:
        for child, _ in modes:
            child.training = False
        yield
    finally:
        for child, mode in modes:
            child.training = mode


def tensors_of(values: object) -> list[Any]:
    """Return the tensors in nested arguments or results, in order."""
    torch: Any = sys.modules["torch"]
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def to_array(tensor: Any) -> NDArray[Any]:  # noqa: ANN401 - as above
    """Return the values of a tensor."""
    torch: Any = sys.modules["torch"]
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        # NumPy has no bfloat16.
        return np.asarray(plain.view(torch.int16).numpy()).view(dtype_from_name("bfloat16"))
    return np.asarray(plain.numpy())


def _storage(tensor: Any) -> int:  # noqa: ANN401 - as above
    return int(tensor.untyped_storage().data_ptr())


def _whole(tensor: Any) -> Any:  # noqa: ANN401 - as above
    """Return all elements of the tensor that another is a view of."""
    return tensor.as_strided([tensor.untyped_storage().nbytes() // tensor.itemsize], [1], 0)


def _is_telling(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, of Python or NumPy, that an operation hardly has by chance."""
    return isinstance(value, Real) and value not in range(-2, 3)


def _variables(frame: FrameType) -> Variables:
    return {(name, value) for name, value in frame.f_locals.items() if _is_telling(value)}


def _calling(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame of the model and those that called it."""
    while frame and frame.f_code.co_filename != __file__:
        yield frame
        frame = frame.f_back


def _model_frame() -> FrameType:
    """Return the model's frame that runs: the innermost outside of PyTorch."""
    frame = sys._getframe(2)
    # Generated code has no file: "<eval_with_key>.0".
    while frame.f_back and (
        frame.f_code.co_name == "__torch_function__" or _NO_MODEL.match(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return frame


def _line(frame: FrameType) -> str | None:
    """Return ``file:line`` where a frame of the model is."""
    file = frame.f_code.co_filename
    return None if file == __file__ else f"{file}:{frame.f_lineno}"
