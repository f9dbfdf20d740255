"""The version that was installed; of a checkout the version at that time, so that later commits break no run."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("bisect-trt")
except PackageNotFoundError:
    # A source tree on the path that is not installed.
    __version__ = "0+unknown"
