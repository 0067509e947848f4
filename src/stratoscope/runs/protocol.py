"""`run.yaml`: what a run was asked for, in the user's own words; `--config` reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.files import write_text
from stratoscope.core.record import to_plain

FILE = "run.yaml"
COMMAND, MADE_BY = "command", "stratoscope"


def write_protocol(folder: Path, protocol: Mapping[str, Any]) -> None:
    """Write the command and its arguments, those at their defaults left out."""
    import yaml

    said = {k: to_plain(v) for k, v in protocol.items() if v is not None and v != [] and v != ()}
    text = yaml.safe_dump({MADE_BY: version("stratoscope"), **said}, sort_keys=False, allow_unicode=True)
    again = f"stratoscope {protocol[COMMAND]} --config {FILE} --out ANOTHER-FOLDER"
    write_text(folder / FILE, f"# Repeats this run: {again}\n{text}")


def read_protocol(path: Path, *, command: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a `command` by name; an unknown key is an error that names the nearest."""
    import yaml

    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise StratoscopeError(f"cannot read --config {path}: {e.strerror}; give a file such as a run's {FILE}") from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: not UTF-8, or a date that is none
        raise StratoscopeError(f"--config {path} is not YAML ({str(e).splitlines()[0]})") from e
    if not isinstance(plain, dict):
        raise StratoscopeError(f"--config {path}: expected keys and values, got {type(plain).__name__}")
    plain.pop(MADE_BY, None)
    said = plain.pop(COMMAND, command)
    if said != command:
        raise StratoscopeError(f"--config {path} is for 'stratoscope {said}', not for 'stratoscope {command}'")
    for key in plain:
        if key not in known:
            raise unknown_name(f"key in {path}", str(key), known)
    return plain
