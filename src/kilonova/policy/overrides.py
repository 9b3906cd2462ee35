"""An operator's policy file: parsed by oslo.policy, turned into the checks that our own rules are made of."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kilonova.policy.checks import (
    AllOf,
    Always,
    AnyOf,
    Check,
    Field,
    Named,
    Never,
    Not,
    PolicyError,
    Role,
    Same,
)


def read_overrides(path: Path) -> dict[str, Check]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the policy file {path} cannot be read: {error}") from None
    try:
        return parse_overrides(text)
    except PolicyError as error:
        raise PolicyError(f"the policy file {path}: {error}") from None


def parse_overrides(text: str) -> dict[str, Check]:
    # Late, since it takes longer to import than the rest of the program takes to start.
    from oslo_policy import policy

    try:
        written = policy.parse_file_contents(text)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    if not isinstance(written, Mapping):
        raise PolicyError("a mapping of rule names to checks is expected")
    for name, check in written.items():
        if not isinstance(name, str) or not isinstance(check, str):
            raise PolicyError(f"rule '{name}': a check is written as a string")
    with _quiet():
        rules = policy.Rules.from_dict(dict(written))
    return {name: _rule(name, written[name], tree) for name, tree in rules.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """The parser logs what it does not understand with a traceback; here an error says it."""
    parser = logging.getLogger("oslo_policy")
    level = parser.level
    parser.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        parser.setLevel(level)


def _rule(name: str, written: str, tree: Any) -> Check:
    try:
        check = _convert(tree)
    except PolicyError as error:
        raise PolicyError(f"rule '{name}': {error}") from None
    # What the parser does not understand it turns into "never", which nobody may have meant.
    if _nevers(check) > written.replace("(", " ").replace(")", " ").split().count("!"):
        raise PolicyError(f"rule '{name}': the check '{written}' is not understood")
    return check


def _convert(tree: Any) -> Check:
    from oslo_policy import policy

    if isinstance(tree, policy.AndCheck):
        return AllOf(tuple(map(_convert, tree.rules)))
    if isinstance(tree, policy.OrCheck):
        return AnyOf(tuple(map(_convert, tree.rules)))
    if isinstance(tree, policy.NotCheck):
        return Not(_convert(tree.rule))
    if isinstance(tree, policy.Check):
        return _leaf(tree.kind, tree.match)
    return Always() if str(tree) == "@" else Never()


def _leaf(kind: str, match: str) -> Check:
    if kind == "rule":
        return Named(match)
    if kind == "role":
        return Role(match)
    if kind == "field":
        return Field(match)
    if kind in ("http", "https", "remote"):
        raise PolicyError(f"the check '{kind}:{match}' asks another server, which is not supported")
    return Same(kind, match)


def _nevers(check: Check) -> int:
    if isinstance(check, AllOf | AnyOf):
        return sum(map(_nevers, check.checks))
    if isinstance(check, Not):
        return _nevers(check.check)
    return isinstance(check, Never)
