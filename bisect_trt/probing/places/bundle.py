"""What is sent to a place so that a worker starts there: nothing is installed.

The modules of :data:`CORE` go to every place, and those of a target (``Target.sent``) before it runs there first. They have
Python 3.8's syntax, and import the standard library, NumPy, the runtime's own package, and each other.
"""

from __future__ import annotations

import importlib.util
import json
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

CORE = (
    "bisect_trt.errors",
    "bisect_trt.tensors.info",
    "bisect_trt.targets.signatures",
    "bisect_trt.targets.messages",
    "bisect_trt.probing.places.sent.wire",
    "bisect_trt.probing.places.sent.facts",
    "bisect_trt.probing.places.sent.supervisor",
    "bisect_trt.probing.places.sent.server",
)
"""The modules that every place gets."""
OLDEST = (3, 8)
"""The oldest Python that they run on."""
READY = b"@bisect-trt-place "
"""What a place says first, before the version of its Python."""
FIRST_LINE = (
    'import os,sys;n=os.write(1,("\\n@bisect-trt-place %d.%d.%d\\n"%sys.version_info[:3]).encode());'
    'f=os.fdopen(0,"rb",0);exec(eval(f.readline()))'
)
"""What an interpreter runs first: of any version, on one line, without a single quote, so that a shell leaves it alone."""
FINDER = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    sources = {}
    packages = set()
    def add_modules(self, sources):
        for name, source in sources.items():
            self.sources[name] = source
            while '.' in name:
                name = name.rpartition('.')[0]
                self.packages.add(name)
    def find_spec(self, name, path=None, target=None):
        if name in self.sources or name in self.packages:
            return importlib.util.spec_from_loader(name, self, is_package=name in self.packages)
        if name.partition('.')[0] == 'bisect_trt':
            raise ModuleNotFoundError(name + ' is not sent to places', name=name)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.sources.get(name, ''), '<' + name + ' as sent>', 'exec'), module.__dict__)
finder = Finder()
sys.meta_path.insert(0, finder)
"""
"""Python that makes ``finder``, which imports the modules that it is given as text."""
_SECOND = f"""
if sys.path and sys.path[0] in ('', os.getcwd()): del sys.path[0]
import json, zlib
size = int(f.readline())
content = b''
while len(content) < size:
    piece = f.read(size - len(content))
    if not piece: os._exit(0)
    content += piece
sent = json.loads(zlib.decompress(content))
{FINDER}
finder.add_modules(sent['modules'])
from bisect_trt.probing.places.sent.supervisor import main
main(sent['options'])
"""


def sources(names: Iterable[str]) -> dict[str, str]:
    """The text of modules, by name."""
    return {name: _source(name) for name in names}


@cache
def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is declared to be sent, and is not there"
    assert spec.origin is not None, f"{name} is declared to be sent, and has no source"
    return Path(spec.origin).read_text(encoding="utf-8")


def start(options: Mapping[str, Any]) -> bytes:
    """What is written to an interpreter that has run :data:`FIRST_LINE`; ``options`` are those of the supervisor."""
    content = zlib.compress(json.dumps({"modules": sources(CORE), "options": dict(options)}).encode())
    return f"{_SECOND!r}\n{len(content)}\n".encode() + content
