"""Whether OpenVINO is here, and what ``doctor`` says of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bisect_trt.errors import UnavailableError


def require_openvino() -> None:
    """Make sure that OpenVINO can be imported.

    Raises:
        UnavailableError: It is not installed, or cannot be loaded.
    """
    try:
        import openvino  # noqa: F401, PLC0415 - this is where it is found out
    except ModuleNotFoundError as error:
        if error.name != "openvino":
            raise
        raise UnavailableError(
            f"OpenVINO is not installed for {sys.executable}; install it there (pip install openvino)."
        ) from error
    except ImportError as error:
        raise UnavailableError(f"OpenVINO is installed and cannot be loaded: {error}; install it again.") from error


def about_openvino() -> Iterator[tuple[str, str]]:
    """Its version and its devices.

    Raises:
        UnavailableError: It is not there.
    """
    require_openvino()
    import openvino  # noqa: PLC0415 - it may crash, and other runtimes may not

    yield "OpenVINO", openvino.__version__
    core = openvino.Core()
    names = {device: core.get_property(device, "FULL_DEVICE_NAME") for device in core.available_devices}
    yield "OpenVINO devices", ", ".join(f"{device} ({name})" for device, name in names.items())
