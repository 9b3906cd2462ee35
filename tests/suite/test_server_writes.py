"""Only `compute/servers/model.py` writes the table `servers`, because it checks changes of the state."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/kilonova"
WRITE = re.compile(r"\b(UPDATE|INSERT INTO|DELETE FROM)\s+servers\b")
MIGRATIONS = SOURCE / "store/migrations"


def test_only_the_model_writes_servers() -> None:
    writers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if MIGRATIONS not in path.parents and WRITE.search(path.read_text())
    }
    assert writers == {"compute/servers/model.py"}
