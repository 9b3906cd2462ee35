"""Reads an operator's policy file: oslo.policy parses it, and its checks are converted to ours."""

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
    Combination,
    Match,
    Never,
    Not,
    PolicyError,
    Role,
    RuleReference,
    TargetField,
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
    # Imported late: the import takes longer than the start of the whole program.
    from oslo_policy import policy

    try:
        written = policy.parse_file_contents(text)
    except ValueError as error:
        raise PolicyError(str(error)) from None
    if not isinstance(written, Mapping):
        raise PolicyError(f"expected a mapping of rule names to checks, found {type(written).__name__}")
    for name, check in written.items():
        if not isinstance(name, str) or not isinstance(check, str):
            raise PolicyError(f"rule '{name}': the check must be a string")
    with _parser_log_silenced():
        rules = policy.Rules.from_dict(dict(written))
    return {name: _convert_rule(name, written[name], tree) for name, tree in rules.items()}


@contextmanager
def _parser_log_silenced() -> Iterator[None]:
    """The parser logs a traceback for invalid checks, which PolicyError reports already."""
    parser = logging.getLogger("oslo_policy")
    level = parser.level
    parser.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        parser.setLevel(level)


def _convert_rule(name: str, written: str, tree: Any) -> Check:
    try:
        check = _convert(tree)
    except PolicyError as error:
        raise PolicyError(f"rule '{name}': {error}") from None
    # The parser turns invalid checks into "never".
    if _count_never(check) > written.replace("(", " ").replace(")", " ").split().count("!"):
        raise PolicyError(f"rule '{name}': the check '{written}' is invalid")
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
        return RuleReference(match)
    if kind == "role":
        return Role(match)
    if kind == "field":
        return TargetField(match)
    if kind in ("http", "https", "remote"):
        raise PolicyError(f"the check '{kind}:{match}' calls another server, which is not supported")
    return Match(kind, match)


def _count_never(check: Check) -> int:
    if isinstance(check, Combination):
        return sum(map(_count_never, check.checks))
    if isinstance(check, Not):
        return _count_never(check.check)
    return isinstance(check, Never)
