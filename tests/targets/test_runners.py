"""The modules that run models stand alone: they are sent to remote workers and joined into ``reproduce.py``."""

from __future__ import annotations

import ast
import builtins
import sys
from collections import Counter
from pathlib import Path

import pytest
from support import case_of

from bisect_trt.report.reproducer import _OUTSIDE, _SHARED, render_script
from bisect_trt.targets.base import TargetSettings, find, names

ROOT = Path(__file__).parents[2]
TARGETS = [name for name in names() if find(name).sent]


def tree_of(module: str) -> ast.Module:
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
    return ast.parse(source, feature_version=(3, 10))


def imports_of(tree: ast.Module) -> set[str]:
    """The modules that a module imports; of this package also the modules that it takes from a folder."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            below = {f"{node.module}.{each.name}" for each in node.names}
            modules = {
                name for name in below if (ROOT / (name.replace(".", "/") + ".py")).is_file()
            }
            found |= modules or {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_runner_imports_the_standard_library_numpy_its_runtime_and_what_goes_with_it(
    target: str,
) -> None:
    modules = (_OUTSIDE, *_SHARED, *find(target).sent)
    runtime = {"onnxrt": "onnxruntime", "trt": "tensorrt", "through": "onnxruntime"}.get(
        target, target
    )
    for place, module in enumerate(modules):
        imported = imports_of(tree_of(module))
        ours = {name for name in imported if name.startswith("bisect_trt")}
        assert ours <= set(modules[:place]), module
        others = {name.partition(".")[0] for name in imported - ours} - sys.stdlib_module_names
        assert others <= {"numpy", "onnx", runtime}, module


@pytest.mark.parametrize("target", TARGETS)
def test_joined_modules_share_no_name(target: str) -> None:
    defined: Counter[str] = Counter()
    for module in (_OUTSIDE, *_SHARED, *find(target).sent):
        for node in tree_of(module).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined[node.name] += 1
            elif isinstance(node, ast.Assign):
                defined.update(
                    n.id for each in node.targets for n in ast.walk(each) if isinstance(n, ast.Name)
                )
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined[node.target.id] += 1
    assert {name for name, times in defined.items() if times > 1} <= {"make"}


@pytest.mark.parametrize("target", TARGETS)
def test_joined_modules_import_names_of_each_other_and_no_modules(target: str) -> None:
    """A script has no modules, so what is said after a module's name or another name is not there."""
    for module in (_OUTSIDE, *_SHARED, *find(target).sent):
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bisect_trt"):
                for each in node.names:
                    name = f"{node.module}.{each.name}"
                    assert each.asname is None, f"{module}: {name} as {each.asname}"
                    assert not (ROOT / (name.replace(".", "/") + ".py")).is_file(), (
                        f"{module}: {name}"
                    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_script_defines_every_name_that_it_uses(target: str) -> None:
    settings = TargetSettings(target)
    how = settings.target.script(
        settings, {"inputs": [], "outputs": [], "lowered": False, "nodes": []}
    )
    made = {*dir(builtins), "__file__"}
    used = set[str]()
    for node in ast.walk(ast.parse(render_script(how, [], case_of("inf")))):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    assert used <= made, used - made
