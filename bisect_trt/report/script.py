"""``reproduce.py``: shows a failure with nothing but the target's own package and NumPy.

It is put together of the sources of the modules that define it and of one literal, which holds all that is of this failure:
whatever the names in a model are, they are never code.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bisect_trt.targets.base import Script
from bisect_trt.tensors.comparison import TensorComparison, to_plain

_SHARED = (
    *("bisect_trt.errors", "bisect_trt.tensors.info", "bisect_trt.targets.messages"),
    "bisect_trt.targets.reproduce",
)
"""The modules of every script, each after those it needs."""
_FOR_LINTERS = re.compile(r"  # (?:noqa|type: ignore)[^\n]*")
ALONE = """import os
import sys

if sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]  # nothing that lies beside this file is imported
"""
"""What a script begins with that is run in a folder which somebody else may have filled; Python has loaded both modules."""
_HEAD = f'''"""Shows a failure again.

Ends with status 1 while it is there, 0 once it is gone, and 2, with a sentence, for anything else.
"""

from __future__ import annotations

{ALONE}
CASE = {{}}

try:
    import PACKAGES
except ImportError as error:
    print(f"cannot tell: {{error}}. This needs {{CASE['needs']}}.")
    sys.exit(2)
'''
_TAIL = """
if __name__ == "__main__":
    sys.exit(main(CASE, make))
"""


def render_script(
    script: Script,
    model: str,
    names: Sequence[str],
    comparisons: Sequence[TensorComparison],
    *,
    answer: str,
    described: str,
    failure: str,
    timeout: float | None = None,
    validate: bool = False,
) -> str:
    """The source of ``reproduce.py``.

    Args:
        script: How the target runs the model.
        model: The model's file name.
        names: Of its nodes and tensors, for the failure's signature.
        comparisons: What was seen of its outputs; their tolerances are what it is held to.
        answer: What fails, in a sentence.
        described: The target in words.
        failure: The signature of the failure.
        timeout: Seconds after which a target that does not answer has failed.
        validate: Whether NaN and Inf fail wherever they are.
    """
    case = {
        "answer": answer,
        "target": described,
        "needs": script.needs,
        "model": model,
        "names": list(names) if failure.startswith(("build: ", "run: ")) else [],
        "settings": script.settings,
        "hints": script.hints,
        "failure": failure,
        "timeout": timeout,
        "validate": validate,
        # By output: absolute tolerance, relative tolerance, the error statistic that is held against them; of a quantized one
        # the step, and how many elements may be one off.
        "tolerances": {
            c.name: [c.atol or 0, c.rtol or 0, _statistic(c), c.step or 0, c.most_ties] for c in comparisons
        },
    }
    sources = [_source(name) for name in (*_SHARED, *script.modules)]
    packages = sorted(set().union(*(packages for packages, _ in sources)))
    literal = "".join(f"    {name!r}: {to_plain(value)!r},\n" for name, value in case.items())
    head = _HEAD.replace("PACKAGES", ", ".join(packages)).replace("CASE = {}", f"CASE = {{\n{literal}}}")
    return "\n\n".join([head, *(text for _, text in sources), _TAIL])


def _source(module: str) -> tuple[set[str], str]:
    """Return a module's source without its docstring and the imports of this package; and the packages that it imports."""
    spec = importlib.util.find_spec(module)
    assert spec is not None  # a module of ours, or of a target's package
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    body = ast.parse(source).body
    checking = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    roots = {ast.unparse(node): ast.unparse(node).split()[1].partition(".")[0] for node in imports}
    kept = [line for line, root in roots.items() if root not in ("__future__", "bisect_trt")]
    # Comments belong to what follows them.
    last = max([*imports, *checking], key=lambda node: node.lineno)
    rest = "\n".join(source.splitlines()[last.end_lineno :]).strip("\n") + "\n"
    packages = {root for root in roots.values() if root not in (*sys.stdlib_module_names, "bisect_trt")}
    return packages, "\n".join([*kept, "\n" + _FOR_LINTERS.sub("", rest)])


def _statistic(comparison: TensorComparison) -> str:
    """The error statistic that decided, as the script reads it."""
    stat = comparison.stat.value
    return stat if comparison.quantile is None else f"{stat} {comparison.quantile}"
