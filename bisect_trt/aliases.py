"""Types that every room writes in signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Plain = Mapping[str, Any]
"""Values by name, of types that JSON has, as they go over to a place."""
Fields = dict[str, Any]
"""Values by name, to be changed or handed on."""
Names = tuple[str, ...]
"""Names of tensors, options, packages."""
Sizes = tuple[int, ...]
"""A shape, or other whole numbers in order."""
