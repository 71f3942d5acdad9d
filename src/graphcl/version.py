"""The version of this package."""

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Returns the installed version; ``0+unknown`` in a source tree that was never installed."""
    try:
        return version("graphcl")
    except PackageNotFoundError:
        return "0+unknown"
