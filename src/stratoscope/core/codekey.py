"""Which code makes a run's numbers: our own source and the libraries below it, as one key."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path

from stratoscope.core.runfolder import digest, file_sha256

SOURCES = (
    "data/*.py",
    "engine/*.py",
    "measures/*.py",
    "models/*.py",
    "statistics/*.py",
    "studies/activations.py",
)
"""Source files that a stored number depends on; what only asks, draws or tells does not count."""
LIBRARIES = ("stratoscope", "torch", "transformers", "tokenizers", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Installed versions of the libraries that numbers depend on."""
    return {name: version(name) for name in LIBRARIES}


@cache
def code_key() -> str:
    """Digest of the source files and library versions behind every stored number.

    It enters the name of every part: activations kept from before a fix are read again, and a killed run that goes on
    under other code mixes nothing. It does not enter the request that tells whether a folder holds the result asked
    for: after an upgrade a finished result stays good, is reused, and the user is told what made it.
    """
    root = Path(__file__).parents[1]
    files = {str(p.relative_to(root)): file_sha256(p) for pattern in SOURCES for p in sorted(root.glob(pattern))}
    return digest([files, versions()], length=64)
