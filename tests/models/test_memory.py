"""Rows that wait in a file: the same numbers, no page held, and memory where there is no file."""

from __future__ import annotations

import pickle
import tempfile

import numpy as np
import pytest
import torch

from stratoscope.engine.local import hand_back
from stratoscope.models.read.memory import Spool, kept_in_file


def test_rows_survive_letting_go_and_are_cut_apart() -> None:
    spool, wanted = Spool(), torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    kept = spool.room(9, 4)
    for start in (6, 0, 3):
        kept[torch.arange(start, start + 3)] = wanted[start : start + 3]
        hand_back()
    pieces = spool.cut(kept, [0, 4, 4, 9])
    assert [len(p) for p in pieces] == [4, 0, 5]
    assert torch.equal(torch.cat(pieces), wanted)
    assert len(pieces[2].untyped_storage()) == 5 * 4 * 4
    del spool, kept
    assert torch.equal(pickle.loads(pickle.dumps(pieces[2])), wanted[4:])


@pytest.mark.parametrize("disk", [True, False])
def test_an_array_survives_letting_go(disk: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not disk:
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    given = np.arange(10_000, dtype=np.int16).reshape(100, 100)
    kept = kept_in_file(given)
    hand_back()
    assert np.array_equal(kept, np.arange(10_000).reshape(100, 100))
    assert (kept.dtype, kept is given) == (np.int16, not disk)
    kept[1, 1] = -5
    hand_back()
    assert pickle.loads(pickle.dumps(torch.from_numpy(kept)))[1, 1] == -5


def full(**_: object) -> None:
    raise OSError("no space left")


def test_without_a_disk_rows_wait_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    spool = Spool()
    kept = spool.room(3, 2).fill_(1.0)
    hand_back()
    assert [p.tolist() for p in spool.cut(kept, [0, 1, 3])] == [[[1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]
