"""Enforces policy: the default rules with an operator's overrides, compiled to functions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.policy import base, compute, identity, image, network, placement, share, volume
from kilonova.policy.base import Rule
from kilonova.policy.checks import Check, CompiledCheck, PolicyError, Target

if TYPE_CHECKING:
    from kilonova.policy.credentials import Credentials

log = logging.getLogger(__name__)

SERVICES = {
    "Shared rules": base.RULES,
    "Compute": compute.RULES,
    "Placement": placement.RULES,
    "Identity": identity.RULES,
    "Image": image.RULES,
    "Network": network.RULES,
    "Volume": volume.RULES,
    "Share": share.RULES,
}
DEFAULTS: dict[str, Rule] = {rule.name: rule for rules in SERVICES.values() for rule in rules}


class Policy:
    """`overrides` is a YAML file of oslo.policy's format, or None."""

    def __init__(self, overrides: Path | None = None) -> None:
        self.overrides = overrides
        self._compiled: dict[str, CompiledCheck] = {}
        self.reload()

    def reload(self) -> None:
        """Read the overrides again. If they are invalid, raise PolicyError and keep the old rules."""
        checks = {name: rule.default for name, rule in DEFAULTS.items()}
        if self.overrides is not None:
            from kilonova.policy.overrides import read_overrides

            overrides = read_overrides(self.overrides)
            _warn_about_unknown_rules(overrides)
            checks.update(overrides)
        self._compiled = compile_rules(checks)

    def allows(self, rule: str, token: Credentials, target: Target) -> bool:
        """Raises KeyError for a rule without a default, which is a programming error."""
        return self._compiled[rule](token, target)

    def check(self, names: Iterable[str]) -> None:
        """Check at start that every rule of the routes has a default."""
        unknown = sorted(set(names) - DEFAULTS.keys())
        if unknown:
            raise KeyError(f"these policy rules have no default: {', '.join(unknown)}")


def compile_rules(checks: Mapping[str, Check]) -> dict[str, CompiledCheck]:
    """Compile each rule to one function, which calls those of the rules it refers to."""
    compiled: dict[str, CompiledCheck] = {}
    in_progress: list[str] = []

    def resolve(name: str) -> CompiledCheck:
        check = compiled.get(name)
        if check is not None:
            return check
        if name not in checks:
            raise PolicyError(f"the rule '{in_progress[-1]}' refers to the rule '{name}', which does not exist")
        if name in in_progress:
            raise PolicyError(f"the rules {' -> '.join((*in_progress, name))} refer to each other in a circle")
        in_progress.append(name)
        check = compiled[name] = checks[name].compile(resolve)
        in_progress.pop()
        return check

    for name in checks:
        try:
            resolve(name)
        except PolicyError as error:
            raise PolicyError(f"policy rule '{name}': {error}") from None
    return compiled


def _warn_about_unknown_rules(overrides: Mapping[str, Check]) -> None:
    """An unknown name that no other rule of the file uses is probably a typo."""
    used = " ".join(f" {check} ".replace("(", " ").replace(")", " ") for check in overrides.values()).split()
    for name in overrides:
        if name not in DEFAULTS and f"rule:{name}" not in used:
            log.warning("the policy file sets the rule %s, which does not exist", name)


def sample_policy() -> str:
    """A sample policy file: every rule with its description and default, commented out."""
    lines: list[str] = []
    for service, rules in SERVICES.items():
        lines += [f"# {service}", ""]
        for rule in rules:
            lines += [f"# {rule.description}", f'#"{rule.name}": "{rule.default}"', ""]
    return "\n".join(lines)
