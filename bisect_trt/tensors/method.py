"""What is compared and how, beside tolerances: Polygraphy's ``--compare``, ``--postprocess``, ``--validate`` and kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bisect_trt.options.choices import Algorithm
from bisect_trt.options.reading import TopK


@dataclass(frozen=True)
class Method:
    """How outputs are compared; the name ``''`` stands for all outputs that are not named.

    Attributes:
        algorithm: How two tensors are compared.
        index_tolerance: For ``indices``: how many places an index may be away.
        top_k: What is taken of both sides first; outputs without an entry stay as they are.
        shape_check: Whether shapes must be the same; if not, one is permuted or reshaped to the other where that works.
        validate: Whether any NaN or Inf, on either side, is a failure.
        script: A script of the user's that compares, ``FILE`` or ``FILE:FUNCTION``.
    """

    algorithm: Algorithm = Algorithm.SIMPLE
    index_tolerance: Mapping[str, int] = field(default_factory=dict)
    top_k: Mapping[str, TopK] = field(default_factory=dict)
    shape_check: bool = True
    validate: bool = False
    script: str | None = None

    @property
    def names(self) -> list[str]:
        """The outputs that are named."""
        return [name for name in {**self.index_tolerance, **self.top_k} if name]

    def top_k_of(self, name: str) -> TopK | None:
        """What to take of an output."""
        return self.top_k.get(name, self.top_k.get(""))

    def places(self, name: str) -> int:
        """How many places an index of an output may be away."""
        return self.index_tolerance.get(name, self.index_tolerance.get("", 0))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "algorithm": self.algorithm.value}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Method:
        """What :meth:`to_json` wrote."""
        top_k = {name: TopK(**value) for name, value in plain["top_k"].items()}
        return cls(**{**plain, "algorithm": Algorithm(plain["algorithm"]), "top_k": top_k})

    def words(self) -> list[str]:
        """The command-line words that ask for it."""
        words = [] if self.algorithm is Algorithm.SIMPLE else ["--compare", self.algorithm.value]
        words += named_words("--index-tolerance", self.index_tolerance)
        words += named_words(
            "--postprocess", {name: f"top-{top.k},axis={top.axis}" for name, top in self.top_k.items()}
        )
        words += [] if self.shape_check else ["--no-shape-check"]
        words += ["--validate"] if self.validate else []
        return words + ([] if self.script is None else ["--compare-func-script", self.script])


def named_words(option: str, values: Mapping[str, object]) -> list[str]:
    """``--option out:value`` for each output, and ``--option value`` for all others."""
    return [word for name, value in values.items() for word in (option, f"{name}:{value}" if name else str(value))]
