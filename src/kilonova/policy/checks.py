"""Checks: the conditions of policy rules. `|`, `&` and `~` combine them; `str()` gives oslo.policy's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from kilonova.policy.credentials import Credentials

Target = Mapping[str, Any]
CompiledCheck = Callable[["Credentials", Target], bool]
ResolveRule = Callable[[str], CompiledCheck]

_ONE_KEY = re.compile(r"%\(([^)]+)\)s")


class PolicyError(Exception):
    """A rule that cannot be parsed or compiled; the message names it."""


class Check:
    """A condition on a token and a target, compiled to a function because every request runs some."""

    __slots__ = ()
    precedence = 2  # in oslo.policy's syntax: `and` and `or` 0, `not` 1, a single check 2

    def __or__(self, other: Check) -> Check:
        return AnyOf((*_flatten(AnyOf, self), *_flatten(AnyOf, other)))

    def __and__(self, other: Check) -> Check:
        return AllOf((*_flatten(AllOf, self), *_flatten(AllOf, other)))

    def __invert__(self) -> Check:
        return Not(self)

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        raise NotImplementedError

    def text_within(self, precedence: int) -> str:
        return str(self) if self.precedence > precedence else f"({self})"


class Always(Check):
    __slots__ = ()

    def __str__(self) -> str:
        return "@"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        return lambda token, target: True


class Never(Check):
    __slots__ = ()

    def __str__(self) -> str:
        return "!"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        return lambda token, target: False


class Role(Check):
    """The token has the role, directly or implied."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"role:{self.name}"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        wanted = self.name.lower()
        if "%(" not in wanted:
            return lambda token, target: wanted in token.roles
        value = _target_value(self.name)

        def has_role(token: Credentials, target: Target) -> bool:
            name = value(target)
            return name is not None and name.lower() in token.roles

        return has_role


class RuleReference(Check):
    """Another rule, by name. An operator's override of that rule applies here too."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"rule:{self.name}"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        return resolve(self.name)


class Match(Check):
    """A credential of the token equals a value of the target, such as `project_id:%(project_id)s`."""

    __slots__ = ("credential", "template")

    def __init__(self, credential: str, template: str | None = None) -> None:
        self.credential = credential
        self.template = f"%({credential})s" if template is None else template

    def __str__(self) -> str:
        return f"{self.credential}:{self.template}"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        if self.credential == "is_admin":
            return self._is_admin(resolve)
        if self.credential == "project_id" and self.template == "%(project_id)s":
            return _same_project
        mine = _credential(self.credential)
        theirs = _target_value(self.template)

        def same(token: Credentials, target: Target) -> bool:
            wanted = theirs(target)
            return wanted is not None and mine(token) == wanted

        return same

    def _is_admin(self, resolve: ResolveRule) -> CompiledCheck:
        """A token has no `is_admin`: it means that the rule `context_is_admin` allows."""
        is_admin = resolve("context_is_admin")
        wanted = self.template.strip().lower()
        if wanted in ("true", "1"):
            return is_admin
        if wanted in ("false", "0"):
            return lambda token, target: not is_admin(token, target)
        raise PolicyError(f"'{self}': is_admin can only be compared with True or False")


class TargetField(Check):
    """An attribute of the target has a value, such as `field:networks:shared=True`."""

    __slots__ = ("match",)

    def __init__(self, match: str) -> None:
        self.match = match

    def __str__(self) -> str:
        return f"field:{self.match}"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        # The attribute may contain colons (router:external); the resource before it does not.
        attribute, equals, wanted = self.match.partition(":")[2].partition("=")
        if not attribute or not equals:
            raise PolicyError(f"'{self}' is not of the form field:resource:attribute=value")
        return lambda token, target: str(target.get(attribute)) == wanted


class Not(Check):
    __slots__ = ("check",)
    precedence = 1

    def __init__(self, check: Check) -> None:
        self.check = check

    def __str__(self) -> str:
        return f"not {self.check.text_within(1)}"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        inner = self.check.compile(resolve)
        return lambda token, target: not inner(token, target)


class Combination(Check):
    __slots__ = ("checks",)
    precedence = 0
    word: ClassVar[str]

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self.checks = checks

    def __str__(self) -> str:
        return f" {self.word} ".join(check.text_within(0) for check in self.checks)


class AllOf(Combination):
    __slots__ = ()
    word = "and"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        closures = tuple(check.compile(resolve) for check in self.checks)
        if len(closures) == 2:
            first, second = closures
            return lambda token, target: first(token, target) and second(token, target)

        def all_of(token: Credentials, target: Target) -> bool:
            for closure in closures:  # noqa: SIM110 - a generator would double the cost of the hot path
                if not closure(token, target):
                    return False
            return True

        return all_of


class AnyOf(Combination):
    __slots__ = ()
    word = "or"

    def compile(self, resolve: ResolveRule) -> CompiledCheck:
        closures = tuple(check.compile(resolve) for check in self.checks)
        if len(closures) == 2:
            first, second = closures
            return lambda token, target: first(token, target) or second(token, target)

        def any_of(token: Credentials, target: Target) -> bool:
            for closure in closures:  # noqa: SIM110 - a generator would double the cost of the hot path
                if closure(token, target):
                    return True
            return False

        return any_of


def _flatten(kind: type[Combination], check: Check) -> tuple[Check, ...]:
    return check.checks if isinstance(check, kind) else (check,)


def _same_project(token: Credentials, target: Target) -> bool:
    project = token.project_id
    return project is not None and target.get("project_id") == project


_CREDENTIALS: dict[str, Callable[[Credentials], str | None]] = {
    "user_id": lambda token: token.user_id,
    "user_domain_id": lambda token: token.user_domain_id,
    "project_id": lambda token: token.project_id,
    "project_name": lambda token: token.project_name,
    "tenant_id": lambda token: token.project_id,
    "project_domain_id": lambda token: token.project_domain_id,
    "domain_id": lambda token: token.domain_id,
    "system_scope": lambda token: "all" if token.system else None,
    "is_admin_project": lambda token: "True" if token.is_admin_project else "False",
}


def _credential(name: str) -> Callable[[Credentials], str | None]:
    if len(name) > 1 and name[0] in "'\"" and name[-1] == name[0]:
        literal = name[1:-1]
        return lambda token: literal
    if name in ("True", "False", "None"):
        return lambda token: name
    try:
        return _CREDENTIALS[name]
    except KeyError:
        raise PolicyError(f"a token has no credential '{name}'; it has {', '.join(_CREDENTIALS)}") from None


def _target_value(template: str) -> Callable[[Target], str | None]:
    """The value of a check's right side for a target; None, which equals nothing, if the target lacks a key."""
    if "%(" not in template:
        return lambda target: template
    single = _ONE_KEY.fullmatch(template)
    if single is None:
        return lambda target: _format(template, target)
    key = single.group(1)

    def value(target: Target) -> str | None:
        found = target.get(key)
        return found if found is None or type(found) is str else str(found)

    return value


def _format(template: str, target: Target) -> str | None:
    try:
        return template % target
    except KeyError:
        return None
