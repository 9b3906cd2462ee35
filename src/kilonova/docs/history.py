"""docs/api/microversions.md: the history of the Compute API, from the microversion files."""

from __future__ import annotations

from pathlib import Path

from kilonova import compute
from kilonova.docs.markdown import page as markdown
from kilonova.http.versions import Microversion


def page(root: Path) -> str:
    api = compute.build()
    unchanged = sorted(set(range(api.low + 1, api.high + 1)) - {version.minor for version in api.microversions})
    return markdown(
        "# History of the Compute API",
        f"Versions {api.major}.{api.low} to {api.major}.{api.high}. Every version is accepted. "
        f"{len(api.microversions)} of them change something that Kilonova implements. The others are: "
        f"{_ranges(unchanged, api.major)}.",
        *(entry(version) for version in api.microversions),
    )


def entry(version: Microversion, level: str = "##") -> str:
    changes = "\n".join(f"- {change.description}" for change in version.changes)
    return f"{level} {version.number}\n\n{(version.history or '').strip()}" + (f"\n\n{changes}" if changes else "")


def _ranges(minors: list[int], major: int) -> str:
    """`2.4, 2.12 to 2.15`."""
    runs: list[list[int]] = []
    for minor in minors:
        if runs and runs[-1][-1] == minor - 1:
            runs[-1].append(minor)
        else:
            runs.append([minor])
    texts = [f"{major}.{run[0]}" + (f" to {major}.{run[-1]}" if len(run) > 1 else "") for run in runs]
    return ", ".join(texts) or "none"
