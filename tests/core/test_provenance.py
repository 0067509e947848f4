"""The code key: what may change a number changes it, what only tells does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stratoscope
from stratoscope.core import provenance
from stratoscope.core.provenance import LIBRARIES, code_key, sources, versions

ROOT = Path(stratoscope.__file__).parent
MODULES = sorted(p.relative_to(ROOT) for p in ROOT.rglob("*.py"))
TELLS = ("cli", "report")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of our shape whose files may be changed."""
    for module in MODULES:
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("x = 1\n")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "core" / "provenance.py"))
    yield tmp_path
    clear()


def clear() -> None:
    code_key.cache_clear()
    versions.cache_clear()


def fresh_key() -> str:
    clear()
    return code_key()


def test_every_module_is_in_the_key_but_those_that_only_tell() -> None:
    covered = {p.relative_to(ROOT) for p in sources()}
    left_out = set(MODULES) - covered
    assert {p.parts[0] for p in left_out} == set(TELLS)
    assert {p.parts[0] for p in covered} >= {"__init__.py", "core", "runs", "results", "engine", "data", "models"}
    assert {p.parts[0] for p in covered} >= {"statistics", "measures", "claims", "studies", "demo"}


@pytest.mark.parametrize("room", sorted({m.parts[0] for m in MODULES if m.parts[0] not in TELLS}))
def test_a_changed_file_that_numbers_depend_on_changes_the_key(package: Path, room: str) -> None:
    keys = {before := fresh_key()}
    changed = [m for m in MODULES if m.parts[0] == room]
    for module in changed:
        (package / module).write_text("x = 2\n")
        keys.add(fresh_key())
    assert len(keys) == len(changed) + 1
    for module in changed:
        (package / module).write_text("x = 1\n")
    assert fresh_key() == before


def test_a_new_and_a_renamed_file_change_the_key(package: Path) -> None:
    before = fresh_key()
    (package / "models" / "new.py").touch()
    with_new = fresh_key()
    (package / "models" / "new.py").rename(package / "models" / "newer.py")
    assert len({before, with_new, fresh_key()}) == 3


@pytest.mark.parametrize("module", [m for m in MODULES if m.parts[0] in TELLS][::6], ids=str)
def test_a_change_of_what_only_tells_does_not(package: Path, module: Path) -> None:
    before = fresh_key()
    (package / module).write_text("x = 2\n")
    assert fresh_key() == before


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_version_of_a_library_changes_the_key(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh_key()
    real = provenance.version
    monkeypatch.setattr(provenance, "version", lambda name: "99" if name == library else real(name))
    assert fresh_key() != before
    assert versions()[library] == "99"
    monkeypatch.undo()
    assert fresh_key() == before
