"""The pages that document result files and modules are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

GENERATOR = Path(__file__).parents[1] / "docs/generate.py"


def test_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.pages()
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, "run 'python docs/generate.py'"
    assert "| `statements` |" in made[module.RESULTS]
    assert "| `loop.py` | The one forward loop" in made[module.MODULES]
    assert "|  |" not in made[module.MODULES], "a module without a docstring"
