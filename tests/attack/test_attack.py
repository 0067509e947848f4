"""No bad input ends in a traceback, a hang, control characters on the terminal or the loss of a file of the user's.

Cases are drawn with a seed. `STRATOSCOPE_ATTACK=1000 pytest tests/attack` runs as many of them instead of the few that
every run of the tests has time for; `STRATOSCOPE_ATTACK=4000:5000` runs those seeds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from arena import LINES, Ended, build, call, copied
from cases import Case, drawn

from stratoscope.cli.main import COMMANDS

CASES = 24
first, _, last = os.environ.get("STRATOSCOPE_ATTACK", f"0:{CASES}").rpartition(":")
SEEDS = range(int(first or 0), int(last))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    os.environ["HF_HUB_OFFLINE"] = "1"
    return build(tmp_path_factory.mktemp("attack") / "root")


def attacked(case: Case, root: Path, place: Path) -> Ended:
    with copied(root, place, *case.spoilt) as folder:
        case.spoil(folder)
        return call(case.words, folder, draw=case.draw)


def test_every_command_is_attacked() -> None:
    assert {name.replace(" DECODER", "") for name in LINES} == set(COMMANDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_bad_input_hurts(seed: int, root: Path, tmp_path: Path) -> None:
    case = drawn(seed)
    ended = attacked(case, root, tmp_path / "here")
    assert not ended.wrong, f"{case.what}: {ended}"
