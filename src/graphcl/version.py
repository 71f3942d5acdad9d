"""The version of this package, and of those that a result depends on."""

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Returns the installed version; ``0+unknown`` in a source tree that was never installed."""
    try:
        return version("graphcl")
    except PackageNotFoundError:
        return "0+unknown"


def versions() -> dict[str, str]:
    """Returns the versions that a result depends on."""
    modules = {"torch": "torch", "numpy": "numpy", "scipy": "scipy", "scikit-learn": "sklearn"}
    return {
        "graphcl": package_version(),
        "python": platform.python_version(),
        **{name: import_module(module).__version__ for name, module in modules.items()},
    }
