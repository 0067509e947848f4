from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratoscope.core import codekey
from stratoscope.TODO.codekey import LIBRARIES, SOURCES
from stratoscope.core.provenance import code_key, versions


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of our shape whose files may be changed."""
    for pattern in (*SOURCES, "report/*.py"):
        path = tmp_path / pattern.replace("*", "some")
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n")
    monkeypatch.setattr(codekey, "__file__", str(tmp_path / "core" / "codekey.py"))
    code_key.cache_clear()
    yield tmp_path
    code_key.cache_clear()


def fresh_key() -> str:
    code_key.cache_clear()
    return code_key()


@pytest.mark.parametrize("name", [p.replace("*", "some") for p in SOURCES])
def test_a_changed_or_new_file_that_numbers_depend_on_changes_the_key(package: Path, name: str) -> None:
    before = fresh_key()
    (package / name).write_text("x = 2\n")
    changed = fresh_key()
    (package / name).write_text("x = 1\n")
    assert fresh_key() == before != changed
    (package / "models" / "new.py").touch()
    assert fresh_key() != before


def test_a_change_of_the_pictures_does_not(package: Path) -> None:
    before = fresh_key()
    (package / "report" / "some.py").write_text("x = 2\n")
    assert fresh_key() == before


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_version_of_a_library_changes_the_key(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fresh_key()
    real = codekey.version
    monkeypatch.setattr(codekey, "version", lambda name: "99" if name == library else real(name))
    assert versions()[library] == "99"
    assert fresh_key() != before
    monkeypatch.undo()
    assert fresh_key() == before


def test_the_patterns_find_our_own_files() -> None:
    root = Path(codekey.__file__).parents[1]
    for pattern in SOURCES:
        assert [p for p in root.glob(pattern) if p.name != "__init__.py"], pattern
