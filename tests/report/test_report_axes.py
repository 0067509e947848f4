from __future__ import annotations

import pytest

from stratoscope.core.matrix import Layer
from stratoscope.report.axes import Block, blocks, printable, shorten


def test_blocks_follow_the_axis():
    axis = [Layer("a", 0), Layer("a", 1), Layer("b", 0), Layer("a", 5)]
    assert blocks(axis) == [Block("a", 0, 2), Block("b", 2, 3), Block("a", 3, 4)]


@pytest.mark.parametrize("width", range(4, 30))
def test_short_names_keep_beginning_and_end_and_fit(width):
    name = "/models/checkpoint-20000"
    got = shorten(name, width)
    assert len(got) <= width
    if width >= len(name):
        assert got == name
    else:
        head, tail = got.split("…")
        assert name.startswith(head)
        assert name.endswith(tail)
        assert len(tail) >= len(head)


def test_printable_names_have_no_control_characters_or_broken_unicode():
    assert printable("a\nb\tc") == "a b c"
    assert printable("x\x00\x1by") == "x\ufffd\ufffdy"
    assert printable("\udcff").encode() == b"?"
    assert printable("模型 é") == "模型 é"
