"""The entry point."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bisect_trt import __version__
from bisect_trt.cli.app import app, run_command_line
from bisect_trt.cli.runs import invocation


def _version(asked: bool) -> None:
    if asked:
        print(f"bisect-trt {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Finds why an ONNX model that runs right in ONNX Runtime runs wrong in TensorRT."""


def main() -> None:
    """Run the command line."""
    invocation.argv, invocation.resumed, invocation.folder = tuple(sys.argv[1:]), None, None
    run_command_line(invocation.argv)
