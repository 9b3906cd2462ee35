"""A sample policy file: every rule with its default."""

from __future__ import annotations

from pathlib import Path

from kilonova.policy import sample


def page(root: Path) -> str:
    return "# Written by `make docs`. Copy it, and take the mark off the rules to change.\n\n" + sample()
