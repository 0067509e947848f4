from __future__ import annotations

import json
import logging
import warnings

import pytest

from stratoscope.cli.answer import Answer, Table
from stratoscope.cli.console import Console, show


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


def test_what_was_noted_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        for message in ("few rows", "long texts", "few rows"):
            console.note(message)
        for _ in range(2):  # a step that comes twice is begun twice
            with console.step("work", 3):
                pass
    found = lines(capsys)
    assert found[:2] == ["few rows", "long texts"]
    assert found.count("work: 3 to do") == 2


def test_a_terminal_keeps_no_bar_of_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as console:
        for k in range(60):
            with console.step(f"step {k}", 1) as advance:
                advance(1)
        assert not console._bars.tasks


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


def test_quiet_shows_neither_progress_nor_notes(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(quiet=True) as console, console.step("work", 3) as advance:
        console.note("by the way")
        advance(3)
        warnings.warn("careful", stacklevel=1)
    assert lines(capsys) == []


def test_what_libraries_warn_of_is_for_the_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    filters, handlers = list(warnings.filters), list(logging.getLogger().handlers)
    for verbose in (False, True):
        with Console(verbose=verbose):
            warnings.warn("careful", stacklevel=1)
            logging.getLogger("somelibrary").warning("look %s", "out")
        noted = "\n".join(lines(capsys))
        assert ("careful" in noted) == ("somelibrary: look out" in noted) == verbose
        assert (warnings.filters, logging.getLogger().handlers) == (filters, handlers)


def test_the_verbose_see_the_time_of_all_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    clock = Clock()
    with Console(clock, verbose=True) as console, console.step("work", 3) as advance:
        clock.now += 75
        advance(3)
    shown = lines(capsys)
    assert any("work: done in 1 min 15 s" in line for line in shown)
    assert "done in 1 min 15 s" in shown[-1]


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x9b31m\u202ename\r\nnext\udcff [red]"
    with Console() as console, console.step(evil, 1):
        console.note(evil)
    show(
        Answer({}, [evil], Table(("a", "b"), [(evil, evil)]), where=evil, then=("stratoscope", evil)),
        as_json=False,
        quiet=False,
    )
    out, err = capsys.readouterr()
    for shown in (out, err):
        assert not set(shown) & set("\x1b\x9b\u202e\r\udcff")
        assert "[red]" in shown, "nor is markup"


def test_an_answer_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer({"a": 1}, ["it is so"], where="look there", then=("stratoscope", "report", "my run"))
    show(answer, as_json=False, quiet=False)
    assert capsys.readouterr().out.splitlines() == ["it is so", "", "look there", "next: stratoscope report 'my run'"]
    show(answer, as_json=False, quiet=True)
    assert capsys.readouterr().out == "it is so\n"
    show(answer, as_json=True, quiet=False)
    assert json.loads(capsys.readouterr().out) == {"a": 1}
