"""`regexp_like` for SQLite: a subset of PostgreSQL's regular expressions that cannot run away.

A filter's pattern comes from anybody, and Python's own engine can be made to think for hours, so the subset is one
that needs no backtracking: literals, `.`, `[classes]`, `\\d \\w \\s`, the anchors, and `* + ?` behind one of these.
"""

from __future__ import annotations

import re
from functools import lru_cache

_ATOM = re.compile(r"\\[dws]|\\[^a-zA-Z0-9]|\[\^?\]?[^\]\\[]+\]|\.|[^\\^$.\[\](){}|*+?]", re.DOTALL)


class BadPattern(ValueError):
    pass


class Pattern:
    """A row of atoms, each wanted once (""), or by its quantifier; matched by walking all possibilities at once."""

    def __init__(self, text: str) -> None:
        self.at_start = text.startswith("^")
        body = text[1:] if self.at_start else text
        self.at_end = body.endswith("$") and not body.endswith("\\$")
        body = body[:-1] if self.at_end else body
        self.atoms: list[tuple[re.Pattern[str], str]] = []
        place = 0
        while place < len(body):
            atom = _ATOM.match(body, place)
            if atom is None:
                raise BadPattern(f"unsupported {body[place]!r} in pattern {text[:80]!r}")
            place = atom.end()
            quantifier = body[place : place + 1]
            if quantifier and quantifier in "*+?":
                place += 1
            else:
                quantifier = ""
            self.atoms.append((_compiled(atom[0]), quantifier))

    def found_in(self, text: str) -> bool:
        alive = self._closure({0})
        for character in text:
            if len(self.atoms) in alive and not self.at_end:
                return True
            moved: set[int] = set() if self.at_start else {0}
            for state in alive:
                if state == len(self.atoms):
                    continue
                atom, quantifier = self.atoms[state]
                if atom.fullmatch(character):
                    moved.add(state + 1)
                    if quantifier in ("*", "+"):
                        moved.add(state)
            alive = self._closure(moved)
        return len(self.atoms) in alive

    def _closure(self, states: set[int]) -> frozenset[int]:
        """With every state that can be reached by leaving out what may be left out."""
        reached = set(states)
        for state in sorted(states):
            while state < len(self.atoms) and self.atoms[state][1] in ("*", "?"):
                state += 1
                reached.add(state)
        return frozenset(reached)


def _compiled(atom: str) -> re.Pattern[str]:
    try:
        return re.compile(atom, re.DOTALL)
    except re.error as error:
        raise BadPattern(f"bad class {atom[:80]!r} in pattern: {error}") from None


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """Raises BadPattern."""
    return Pattern(text)


def regexp_like(text: str | None, wanted: str) -> bool | None:
    return None if text is None else pattern(wanted).found_in(text)
