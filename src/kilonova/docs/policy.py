"""docs/policy.yaml: a sample policy file with the default of every rule."""

from __future__ import annotations

from pathlib import Path

from kilonova.policy import sample_policy


def page(root: Path) -> str:
    return "# Written by `make docs`. Copy it, and remove the `#` before the rules to change.\n\n" + sample_policy()
