"""The versions a result depends on, for the foot of every report."""

import platform
from importlib.metadata import PackageNotFoundError, version

from interp import __version__

_PACKAGES = ("torch", "transformer-lens", "transformers", "numpy", "scikit-learn", "matplotlib")


def describe_versions() -> tuple[tuple[str, str], ...]:
    """(name, version) of this library, Python, the platform and the packages that compute."""
    found = [("interp-toolkit", __version__), ("Python", platform.python_version()), ("platform", platform.platform())]
    for package in _PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)
