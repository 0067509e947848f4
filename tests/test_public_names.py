"""What a user sees of the package: the public names, whether they are loaded yet or not, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import stratoscope


def test_only_public_names_are_listed_before_and_after_use() -> None:
    script = (
        "import sys, stratoscope\n"
        "before = dir(stratoscope)\n"
        "assert 'torch' not in sys.modules, 'a list of names loads nothing'\n"
        "stratoscope.depth\n"
        "assert dir(stratoscope) == before\n"
        "print(*before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted(stratoscope.__all__)


def test_a_star_import_gives_just_those() -> None:
    names: dict[str, object] = {}
    exec("from stratoscope import *", names)
    assert names.keys() - {"__builtins__"} == set(stratoscope.__all__)
    assert all(names[name] is getattr(stratoscope, name) for name in stratoscope.__all__)
