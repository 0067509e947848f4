from __future__ import annotations

import pickle

from stratoscope.core.errors import StratoscopeError, unknown_name


def test_an_unknown_name_lists_the_choices_and_the_nearest() -> None:
    error = unknown_name("measure", "ckasm", ["ckasim", "svsim"])
    assert isinstance(error, StratoscopeError)
    assert str(error) == "unknown measure 'ckasm'; did you mean 'ckasim'? choose from: ckasim, svsim"


def test_without_a_near_name_nothing_is_guessed() -> None:
    assert str(unknown_name("unit", "xyzzy", ["word", "cls"])) == "unknown unit 'xyzzy'; choose from: word, cls"


def test_errors_keep_their_words_on_the_way_out_of_a_worker() -> None:
    for error in (StratoscopeError("give more text"), unknown_name("unit", "wrd", ["word"])):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
