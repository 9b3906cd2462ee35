"""`python -m kilonova.docs` writes the generated parts of docs/; with `--check` it only lists outdated ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from kilonova.docs import (
    authorization,
    configuration,
    coverage,
    history,
    operations,
    placement,
    policy,
    scheduler,
    share,
    states,
    volume,
)

# Path below docs/, and the function that generates the page from the repository's root.
PAGES: dict[str, Callable[[Path], str]] = {
    "api/authorization.md": authorization.page,
    "api/microversions.md": history.page,
    "api/coverage.md": coverage.page,
    "api/placement.md": placement.page,
    "api/share.md": share.page,
    "api/volume.md": volume.page,
    "architecture/operations.md": operations.page,
    "architecture/states.md": states.page,
    "architecture/volume-states.md": volume.state_page,
    "configuration.md": configuration.page,
    "policy.yaml": policy.page,
    "scheduler.md": scheduler.page,
}


def find_stale(root: Path) -> dict[Path, str]:
    """The outdated pages, with their new text."""
    wanted = {root / "docs" / name: page(root) for name, page in PAGES.items()}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m kilonova.docs", description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    options.add_argument("--root", type=Path, default=Path(), help="the repository (default: the current directory)")
    given = options.parse_args()
    if not (given.root / "docs").is_dir():
        print(f"{given.root.absolute()} has no directory docs", file=sys.stderr)
        return 2
    found = find_stale(given.root)
    for path, text in found.items():
        if given.check:
            print(f"{path} is out of date: run make docs", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    return 1 if given.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
