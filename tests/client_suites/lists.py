"""The lists of a suite: `lists/SUITE/must-pass.txt` and `lists/SUITE/cannot-pass.txt`.

`must-pass.txt` has one test per line. In `cannot-pass.txt` a line with `#` is the reason of the tests below it, up to
the next reason. There, `*` in a test's name stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.client_suites.suite import Outcome

LISTS_DIRECTORY = Path(__file__).parent / "lists"


@dataclass
class Lists:
    must_pass: set[str] = field(default_factory=set)
    # Pattern to reason.
    cannot_pass: dict[str, str] = field(default_factory=dict)

    def find_pattern(self, test: str) -> str | None:
        """The pattern in `cannot_pass` that matches the test."""
        return next((pattern for pattern in self.cannot_pass if _matches(pattern, test)), None)


@dataclass(frozen=True)
class Verdict:
    """Compares outcomes with the lists."""

    passed: list[str]
    # Tests of `must-pass.txt` that did not pass, with their outcome.
    broken: dict[str, Outcome]
    # Tests in neither list, with their outcome.
    unlisted: dict[str, Outcome]
    # Tests of `cannot-pass.txt` that failed or were skipped.
    known: list[str]
    # Patterns of `cannot-pass.txt` with a test that passed, or without any test.
    outdated: list[str]


def read(suite: str) -> Lists:
    lists = Lists()
    directory = LISTS_DIRECTORY / suite
    if (path := directory / "must-pass.txt").exists():
        lists.must_pass = set(path.read_text().splitlines())
    if (path := directory / "cannot-pass.txt").exists():
        lists.cannot_pass = parse_cannot_pass(path.read_text())
    return lists


def parse_cannot_pass(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    reason: list[str] = []
    in_reason = False
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            reason = [*reason, line[1:].strip()] if in_reason else [line[1:].strip()]
        elif not reason:
            raise ValueError(f"{line}: expected a line with # and the reason above it")
        else:
            found[line] = " ".join(reason)
        in_reason = line.startswith("#")
    return found


def write_must_pass(suite: str, tests: set[str]) -> None:
    directory = LISTS_DIRECTORY / suite
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "must-pass.txt").write_text("".join(f"{test}\n" for test in sorted(tests)))


def judge(lists: Lists, outcomes: Mapping[str, Outcome], only: str = "") -> Verdict:
    """`only` is the regular expression of the tests that ran."""
    passed = sorted(test for test, outcome in outcomes.items() if outcome.status == "passed")
    expected = (test for test in lists.must_pass if re.search(only, test))
    broken = {test: outcomes.get(test, Outcome("not run")) for test in sorted(expected) if test not in passed}
    others = [test for test in sorted(outcomes) if test not in lists.must_pass]
    patterns = {test: lists.find_pattern(test) for test in others}
    unlisted = {test: outcomes[test] for test in others if patterns[test] is None}
    known = [test for test in others if patterns[test] is not None and test not in passed]
    unused = set() if only else set(lists.cannot_pass) - set(patterns.values())
    outdated = {pattern for test, pattern in patterns.items() if pattern is not None and test in passed} | unused
    return Verdict(passed, broken, unlisted, known, sorted(outdated))


def _matches(pattern: str, test: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test) is not None
