"""What is released, as somebody gets it: built, installed into clean environments, run, and typed against.

Run by ``make release``, not by ``make test``: it installs packages from an index, into environments
of its own.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from itertools import product
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
FALLBACK = re.findall(
    r'^fallback-version = "(.*)"',
    (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
    re.MULTILINE,
)[0]
RELEASES = re.findall(
    r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
)
VERSION = RELEASES[0] if RELEASES else FALLBACK
"""The newest release; before the first, what the package calls itself."""
STRANGER = '''"""What somebody types who knows the documentation alone."""

import bisect_trt

result = bisect_trt.reduce("model.onnx", lambda path: path.exists())
print(result.status, result.culprits, result.artifacts["reduced"])
reveal_type(result.status)
bisect_trt.assert_matches("model.onnx", target="onnxrt", fp16=True)
'''
CHAIN = '''"""Writes model.onnx: a square that overflows fp16."""

import onnx
from onnx import TensorProto, helper

nodes = [helper.make_node(op, inputs, [out], name=out) for op, inputs, out in
         (("Relu", ["x"], "a"), ("Mul", ["a", "big"], "b"), ("Mul", ["b", "b"], "c"), ("Sqrt", ["c"], "y"))]
tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
big = helper.make_tensor("big", TensorProto.FLOAT, [], [1000.0])
graph = helper.make_graph(nodes, "chain", tensors[:1], tensors[1:], [big])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
'''


def run(*words: str | Path, cwd: Path, status: int = 0) -> str:
    """Run a command; what it prints."""
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and source distribution, of what git has: the wheel is built from the unpacked source, where there is no git."""
    out = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "build",
        "--outdir",
        out,
        checkout(tmp_path_factory.mktemp("source")),
        cwd=out,
    )
    return out


def checkout(folder: Path, *options: str) -> Path:
    """A clone of what is committed, in which can be committed."""
    run("git", "clone", "--quiet", *options, ROOT.as_uri(), folder, cwd=ROOT)
    for name in ("name", "email"):
        run("git", "config", f"user.{name}", "nobody@example.org", cwd=folder)
    return folder


def version_in(folder: Path) -> str:
    """The version of what would be built there."""
    return run(sys.executable, "-W", "ignore", "-m", "hatchling", "version", cwd=folder).strip()


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def version(wheel: Path) -> str:
    """The wheel's."""
    return wheel.name.split("-")[1]


@pytest.fixture(scope="session")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a clean environment in which the wheel was installed, with what it needs and no more."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[cpu]", cwd=folder)
    return folder / "venv" / "bin"


def test_the_wheel_holds_the_package_its_templates_and_its_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    own = [name for name in names if ".dist-info/" not in name]
    assert all(name.startswith("bisect_trt/") for name in own)
    assert "bisect_trt/py.typed" in own
    there = {path.name for path in (ROOT / "bisect_trt/report/templates").iterdir()}
    assert there <= {Path(name).name for name in own}
    assert not any(re.search(r"__pycache__|\.onnx$|\.npz$", name) for name in names)


def test_the_source_holds_what_is_needed_to_build_and_to_test(dist: Path) -> None:
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "tests/conftest.py",
    } <= names


def test_what_an_index_shows_of_it_is_valid(dist: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)


def test_the_program_in_a_clean_environment(clean: Path, version: str, tmp_path: Path) -> None:
    assert f"bisect-trt {version}\n" == run(clean / "bisect-trt", "--version", cwd=tmp_path)
    (tmp_path / "make.py").write_text(CHAIN)
    run(clean / "python", "make.py", cwd=tmp_path)
    options = ["--onnxrt", "--fp16", "--val-range", "[1,2]", "--zip"]
    said = run(clean / "bisect-trt", "diagnose", "model.onnx", *options, cwd=tmp_path)
    assert "Mul 'c' fails alone (1-minimal)" in said
    assert (tmp_path / "model-reproducer.zip").exists()
    run(clean / "python", "model-reproducer/reproduce.py", cwd=tmp_path, status=1)


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_without_an_environment(tool: str, wheel: Path, version: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"there is no {tool} here (pip install {'uv' if tool == 'uvx' else tool})")
    words: list[str | Path] = (
        ["uvx", "--from", wheel] if tool == "uvx" else ["pipx", "run", "--spec", wheel]
    )
    assert version in run(*words, "bisect-trt", "--version", cwd=tmp_path)


def test_its_types_hold_for_a_stranger(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text(STRANGER)
    said = run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        clean / "python",
        "stranger.py",
        cwd=tmp_path,
    )
    assert 'Revealed type is "str"' in said or "builtins.str" in said
    (tmp_path / "wrong.py").write_text(
        'import bisect_trt\n\nprint(bisect_trt.reduce("model.onnx", "check").stauts)\n'
    )
    wrong: list[str | Path] = [
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        clean / "python",
        "wrong.py",
    ]
    assert "has no attribute" in run(sys.executable, *wrong, cwd=tmp_path, status=1)


def test_a_tag_says_the_version_that_it_tags() -> None:
    tags = run("git", "tag", "--points-at", "HEAD", "--list", "v*", cwd=ROOT).split()
    assert tags in ([], [f"v{VERSION}"])


def test_a_version_is_that_of_the_tag_or_a_step_past_it(tmp_path: Path) -> None:
    source = checkout(tmp_path / "source", "--no-tags")
    archive = tmp_path / "archive"

    def unpacked() -> str:
        shutil.rmtree(archive, ignore_errors=True)
        run("git", "archive", "--output", tmp_path / "archive.tar", "HEAD", cwd=source)
        shutil.unpack_archive(tmp_path / "archive.tar", archive)
        return version_in(archive)

    past = FALLBACK.removesuffix("0")
    assert re.fullmatch(rf"{re.escape(past)}[1-9]\d*", version_in(source))
    assert unpacked() == FALLBACK
    assert version_in(checkout(tmp_path / "shallow", "--depth=1", "--no-tags")) == f"{past}1"
    run("git", "tag", "v9.8.7", cwd=source)
    assert version_in(source) == unpacked() == "9.8.7"
    run("git", "commit", "--quiet", "--allow-empty", "--message", "More", cwd=source)
    run("git", "tag", "nightly-2026", cwd=source)
    assert version_in(source) == unpacked() == "9.8.8.dev1"


def test_a_checkout_that_is_installed_keeps_its_version_while_it_is_worked_on(
    tmp_path: Path,
) -> None:
    source = checkout(tmp_path / "source")
    run("git", "tag", "--force", "v9.8.7", cwd=source)
    run(sys.executable, "-m", "venv", "--system-site-packages", "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", source, cwd=tmp_path)
    run("git", "commit", "--quiet", "--allow-empty", "--message", "More", cwd=source)
    assert run(tmp_path / "venv/bin/bisect-trt", "--version", cwd=tmp_path) == "bisect-trt 9.8.7\n"
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "bisect-trt", cwd=tmp_path)
    said = run(python, "-S", "-c", "import bisect_trt; print(bisect_trt.__version__)", cwd=source)
    assert said == "0+unknown\n"


def test_the_changelog_and_the_citation_know_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert [f"version: {VERSION}"] * bool(RELEASES) == re.findall(
        r"^version: .*$", citation, re.MULTILINE
    )
    assert f'default="{VERSION}"' in (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here (on Debian: apt-get install chromium)"
)
@pytest.mark.timeout(1200)
def test_every_page_of_the_site_opens_from_the_disk_for_everybody_and_asks_nobody(
    tmp_path: Path,
) -> None:
    axe = importlib.util.find_spec("axe_core_python")
    assert axe is not None
    assert axe.origin is not None
    rules = Path(axe.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    run(sys.executable, ROOT / "docs" / "site.py", cwd=ROOT)
    run(
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        tmp_path / "site",
        cwd=ROOT,
    )
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 50
    with Browser(tmp_path / "profile") as browser:
        for page, (width, dark) in product(pages, ((390, False), (1400, True))):
            browser.open(page, width=width, dark=dark)
            browser.evaluate("new Promise(r => setTimeout(r, 300))")
            assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
            assert browser.problems == []
            assert "```" not in browser.evaluate("document.body.innerText"), page
            assert browser.evaluate("document.body.dataset.mdColorScheme") == (
                "slate" if dark else "default"
            )
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), page
            browser.evaluate(f"{rules};0")
            broken = "axe.run().then(r => r.violations.map(v => [v.id, ...v.nodes.map(n => n.html.slice(0, 120))]))"
            assert browser.evaluate(broken) == [], page
        browser.open(tmp_path / "site" / "docs" / "precision.html")
        browser.evaluate("document.querySelector('[data-md-component=search-query]').focus()")
        browser.type("psnr")
        found = "document.querySelectorAll('.md-search-result__item').length"
        assert browser.evaluate(
            f"new Promise(r => {{ const look = () => {found} ? r({found}) : setTimeout(look, 100); look(); }})"
        )


def test_the_recipe_for_conda_and_the_action_are_what_their_tools_read() -> None:
    recipe = """
import pathlib, sys, rattler_build
(variant,) = rattler_build.Stage0Recipe.from_yaml(pathlib.Path(sys.argv[1]).read_text()).render(rattler_build.VariantConfig())
print(variant)
"""
    assert f"version='{VERSION}'" in run(
        sys.executable, "-c", recipe, ROOT / "conda" / "recipe.yaml", cwd=ROOT
    )
    check: list[str | Path] = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    run(*check, "vendor.github-actions", ROOT / "action.yml", cwd=ROOT)
    run(
        *check,
        "vendor.github-workflows",
        *sorted((ROOT / ".github" / "workflows").iterdir()),
        cwd=ROOT,
    )
