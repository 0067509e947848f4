"""`stratoscope report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratoscope.cli.answer import Answer, answer_of, drawing, look_closer
from stratoscope.cli.options import command
from stratoscope.core.errors import StratoscopeError, unknown_name
from stratoscope.core.progress import Progress
from stratoscope.runs.kinds import KINDS, kind_in

STYLES = ("screen", "paper")

Folder = Annotated[Path, typer.Argument(help="Folder of an earlier run.", metavar="FOLDER")]
Style = Annotated[str, typer.Option("--style", help="screen; or paper: figures without titles, captions as text.")]


@command
def report(folder: Folder, progress: Progress, style: Style = STYLES[0]) -> Answer:
    """Rebuild figures and page from a saved result; no model needed."""
    if style not in STYLES:
        raise unknown_name("style", style, STYLES)
    check_page(folder)  # before the folder is opened, which would make it one of ours
    from stratoscope.results.result import load
    from stratoscope.runs.folder import RunFolder

    result = load(folder)
    with RunFolder.open(folder):
        drawing(progress, style=style)(folder, result)
    return answer_of(folder, result, then=look_closer(folder, result) if result.statements else ())


def check_page(folder: Path) -> None:
    """Refuse a folder whose kind has no page, in a sentence that says what it holds and which kinds have one."""
    held = kind_in(folder)
    if held is not None and held.sections:
        return
    commands = [f"'stratoscope {kind.command}'" for kind in KINDS if kind.sections]
    expected = f"a folder that {', '.join(commands[:-1])} or {commands[-1]} wrote"
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing of that name"
        raise StratoscopeError(f"{folder}: expected {expected}, got {got}; check the path")
    inside = {folder: held} if held else {f: kind for f in sorted(folder.iterdir()) if (kind := kind_in(f))}
    if drawn := next((f for f, kind in inside.items() if kind.sections), None):
        raise StratoscopeError(f"{folder} holds no result itself; give a folder inside it that does, such as {drawn}")
    if inside:
        where, kind = next(iter(inside.items()))
        file = (where / kind.file).relative_to(folder)
        raise StratoscopeError(f"{folder} holds {kind.what} ({file}), which has no page; give {expected}")
    raise StratoscopeError(f"{folder} holds no result; give {expected}")
