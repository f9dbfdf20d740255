"""A plug-in of pytest: the fixture ``assert_matches``.

pytest loads it because bisect-trt is installed (the entry-point group ``pytest11``), so it imports
nothing that takes time before a test asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def assert_matches() -> Callable[..., None]:
    """:func:`bisect_trt.assert_matches`."""
    import bisect_trt  # noqa: PLC0415 - it takes NumPy and ONNX

    return bisect_trt.assert_matches
