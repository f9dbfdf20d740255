"""A plug-in of pytest: the fixture ``assert_matches``, which keeps what the reference made of a model from run to run.

pytest loads it because bisect-trt is installed (the entry-point group ``pytest11``), so it imports nothing that takes time
before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bisect_trt.api.references import References


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where references are kept."""
    parser.getgroup("bisect-trt").addoption(
        "--bisect-trt-references",
        metavar="DIR",
        default=None,
        help="Where the fixture assert_matches keeps what the reference makes of a model; default pytest's cache.",
    )


@pytest.fixture(scope="session")
def bisect_trt_references(pytestconfig: pytest.Config) -> References:
    """The cache of references; its ``hits`` and ``misses`` say how it was used."""
    from bisect_trt.api.references import References  # noqa: PLC0415 - it takes NumPy and ONNX

    folder = pytestconfig.getoption("--bisect-trt-references")
    if folder is not None:
        return References(Path(folder))
    cache = getattr(pytestconfig, "cache", None)  # its plug-in may be turned off
    return References(None if cache is None else cache.mkdir("bisect-trt"))


@pytest.fixture
def assert_matches(bisect_trt_references: References) -> Callable[..., None]:
    """:func:`bisect_trt.assert_matches`, with a cache of references."""
    return bisect_trt_references.assert_matches
