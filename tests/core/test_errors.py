from __future__ import annotations

import pickle

from stratoscope.core.errors import StratoscopeError, UnknownNameError, unknown_name


def test_an_unknown_name_lists_the_choices_and_the_nearest() -> None:
    error = unknown_name("measure", "ckasm", ["ckasim", "svsim"])
    assert isinstance(error, StratoscopeError)
    assert str(error) == "unknown measure 'ckasm'; did you mean 'ckasim'? choose from: ckasim, svsim"


def test_any_of_the_ways_will_do() -> None:
    assert str(StratoscopeError("it is broken")) == "it is broken"
    assert str(StratoscopeError("it is broken", "mend it")) == "it is broken; mend it"
    assert str(StratoscopeError("it is broken", "mend it", "leave it", "go")) == "it is broken; mend it, leave it or go"


def test_a_way_that_needs_an_option_is_none_where_there_is_no_such_option() -> None:
    error = StratoscopeError("--data is bad", "mend it", "give --text, or --text-pair for two", "give --text")
    assert str(error.where(lambda option: True)) == str(error)
    assert str(error.where(["--text"].__contains__)) == "--data is bad; mend it or give --text"
    assert str(error.where(["--out"].__contains__)) == "--data is bad; mend it"
    assert type(UnknownNameError("x", "y").where(bool)) is UnknownNameError


def test_without_a_near_name_nothing_is_guessed() -> None:
    assert str(unknown_name("unit", "xyzzy", ["word", "cls"])) == "unknown unit 'xyzzy'; choose from: word, cls"


def test_errors_keep_their_words_on_the_way_out_of_a_worker() -> None:
    told = StratoscopeError("too little", "give more text", "give --limit")
    for error in (StratoscopeError("give more text"), told, unknown_name("unit", "wrd", ["word"])):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
