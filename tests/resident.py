"""The command line with the unsteady target, in one process that stays: targets are found at the first import."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from support import Ran, json_file, verbose

UNSTEADY = Path(__file__).parent / "unsteady"
SERVER = """
import json, os, sys
from bisect_trt.cli.app import perform
from bisect_trt.cli.parser import parse
from bisect_trt.worker.worker import keep_spare

keep_spare(2)
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    folder, sys.argv, surroundings, out, err = json.loads(line)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(surroundings)
    for path, number in ((out, 1), (err, 2)):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    try:
        perform(*parse(sys.argv[1:]), tuple(sys.argv[1:]))
        status = 0
    except SystemExit as ended:
        status = ended.code
    sys.stdout.flush()
    sys.stderr.flush()
    print(status, file=answers, flush=True)
"""


def surroundings() -> dict[str, str]:
    """The environment in which a process finds the unsteady target."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(UNSTEADY), *filter(None, [kept.get("PYTHONPATH")])]),
    }


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVER]
    process = subprocess.Popen(
        command,
        env=surroundings(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    atexit.register(process.communicate)
    return process


def unsteady(*argv: str | Path) -> Ran:
    """Run ``bisect-trt`` where there is the unsteady target, in the working directory."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with NamedTemporaryFile("w+") as out, NamedTemporaryFile("w+") as err:
        words = ["bisect-trt", *verbose(argv)]
        server.stdin.write(
            json.dumps([str(Path.cwd()), words, surroundings(), out.name, err.name]) + "\n"
        )
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, err.read()
        return Ran(int(status), out.read(), err.read(), json_file(words))
