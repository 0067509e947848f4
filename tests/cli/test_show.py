from __future__ import annotations

import pytest

from stratoscope.cli.show import Console


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_log_tells_when_a_step_begins_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Console(clock) as console, console.step("reading [x]", 12_000) as advance:
        assert lines(capsys) == ["reading [x]: 12,000 to do"]
        for _ in range(12):
            clock.now += 2
            advance(1000)
        assert lines(capsys) == []
    assert lines(capsys) == ["reading [x]: done in 24 s"]


def test_a_long_step_tells_rate_and_time_left_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Console(clock) as console, console.step("work", 1000) as advance:
        advance(500)  # kept from an earlier run: read at once, so only the first rate is too high
        for _ in range(500):
            clock.now += 1
            advance(1)
    found = lines(capsys)
    assert found[1] == "work: 530 of 1,000, 17.7/s, about 27 s left"
    assert found[2] == "work: 560 of 1,000, 1.0/s, about 7 min 20 s left"
    assert found[3] == "work: 590 of 1,000, 1.0/s, about 6 min 50 s left"
    assert len(found) == 2 + 500 // 30
    assert found[-1] == "work: done in 8 min 20 s"


def test_hours_and_nothing_done_yet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Console(clock) as console, console.step("work", 10_000) as advance:
        clock.now += 40
        advance(0)
        clock.now += 40
        advance(40)
    assert lines(capsys) == [
        "work: 10,000 to do",
        "work: 0 of 10,000, 0.0/s",
        "work: 40 of 10,000, 1.0/s, about 2 h 46 min left",
        "work: done in 1 min 20 s",
    ]


def test_a_step_that_fails_is_not_said_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), Console() as console, console.step("work", 3):
        raise RuntimeError
    assert lines(capsys) == ["work: 3 to do"]


def test_a_terminal_has_a_bar_instead(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as console, console.step("work", 3) as advance:
        advance(3)
    shown = "\n".join(lines(capsys))
    assert "3/3" in shown
    assert "to do" not in shown
