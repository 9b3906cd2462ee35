"""The rules in force: the defaults, an operator's overrides on top, compiled to closures."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kilonova.policy import base, compute, identity, image, network, placement, volume
from kilonova.policy.base import Rule
from kilonova.policy.checks import Check, Closure, PolicyError, Target

if TYPE_CHECKING:
    from kilonova.identity.token import Token

log = logging.getLogger(__name__)

SERVICES = {
    "Shared rules": base.RULES,
    "Compute": compute.RULES,
    "Placement": placement.RULES,
    "Identity": identity.RULES,
    "Image": image.RULES,
    "Network": network.RULES,
    "Volume": volume.RULES,
}
DEFAULTS: dict[str, Rule] = {rule.name: rule for rules in SERVICES.values() for rule in rules}


class Policy:
    """`overrides` is a YAML file of oslo.policy's format, or None."""

    def __init__(self, overrides: Path | None = None) -> None:
        self.overrides = overrides
        self._closures: dict[str, Closure] = {}
        self.reload()

    def reload(self) -> None:
        """Read the overrides again. Raises PolicyError and keeps the old rules if they are wrong."""
        checks = {name: rule.default for name, rule in DEFAULTS.items()}
        if self.overrides is not None:
            from kilonova.policy.overrides import read_overrides

            given = read_overrides(self.overrides)
            _warn_of_unknown(given)
            checks.update(given)
        self._closures = compile_rules(checks)

    def allows(self, rule: str, token: Token, target: Target) -> bool:
        """Raises KeyError for a rule nobody declared: that is an error of the program."""
        return self._closures[rule](token, target)

    def check(self, names: Iterable[str]) -> None:
        """At start: every rule that routes name is declared."""
        unknown = sorted(set(names) - DEFAULTS.keys())
        if unknown:
            raise KeyError(f"no default is declared for the policy rules {', '.join(unknown)}")


def compile_rules(checks: Mapping[str, Check]) -> dict[str, Closure]:
    """Each rule to one closure; a rule that refers to others holds theirs."""
    done: dict[str, Closure] = {}
    open_rules: list[str] = []

    def resolve(name: str) -> Closure:
        closure = done.get(name)
        if closure is not None:
            return closure
        if name not in checks:
            raise PolicyError(f"the rule '{open_rules[-1]}' refers to the rule '{name}', which does not exist")
        if name in open_rules:
            raise PolicyError(f"the rules {' -> '.join((*open_rules, name))} refer to each other in a circle")
        open_rules.append(name)
        closure = done[name] = checks[name].compile(resolve)
        open_rules.pop()
        return closure

    for name in checks:
        try:
            resolve(name)
        except PolicyError as error:
            raise PolicyError(f"policy rule '{name}': {error}") from None
    return done


def _warn_of_unknown(given: Mapping[str, Check]) -> None:
    """A name that is neither ours nor used by another rule of the file is likely a slip."""
    used = " ".join(f" {check} ".replace("(", " ").replace(")", " ") for check in given.values()).split()
    for name in given:
        if name not in DEFAULTS and f"rule:{name}" not in used:
            log.warning("the policy file sets the rule %s, which nothing asks for", name)


def sample() -> str:
    """Every rule with its description and default, commented out: a policy file to begin with."""
    lines: list[str] = []
    for service, rules in SERVICES.items():
        lines += [f"# {service}", ""]
        for rule in rules:
            lines += [f"# {rule.description}", f'#"{rule.name}": "{rule.default}"', ""]
    return "\n".join(lines)
