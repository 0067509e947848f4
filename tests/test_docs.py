"""The page that documents result files is what the classes say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

GENERATOR = Path(__file__).parents[1] / "docs/generate.py"


def test_the_page_of_results_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run 'python docs/generate.py'"
    assert "| `statements` |" in module.page()
