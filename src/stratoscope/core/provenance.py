"""Which code makes a run's numbers: our own source and the libraries below it, as one key."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stratoscope.core.files import digest, file_sha256

TELLING = ("cli", "report")
"""Rooms that only ask, draw or tell: no stored number depends on them."""
LIBRARIES = ("stratoscope", "torch", "transformers", "tokenizers", "accelerate", "numpy", "scipy", "scikit-learn")


@cache
def versions() -> dict[str, str]:
    """Installed versions of Python and of the libraries that numbers depend on."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:  # a source tree that was never installed
            installed[name] = "unknown"
    return installed


def sources() -> list[Path]:
    """Every source file of ours that a stored number may depend on."""
    root = Path(__file__).parents[1]
    return sorted(p for p in root.rglob("*.py") if p.relative_to(root).parts[0] not in TELLING)


@cache
def code_key() -> str:
    """Digest of the source files and library versions behind every stored number.

    It enters the name of every part: parts kept from before a fix are made again, and a killed run that is resumed
    under other code mixes nothing. It does not enter the request that says whether a folder holds the result asked
    for: after an upgrade a finished result stays good, is reused, and what made it is reported.
    """
    root = Path(__file__).parents[1]
    return digest([{str(p.relative_to(root)): file_sha256(p) for p in sources()}, versions()], length=64)
