"""Checks that rules are made of: combined by `|`, `&` and `~`, printed as oslo.policy strings, compiled to closures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilonova.identity.token import Token

Target = Mapping[str, Any]
Closure = Callable[["Token", Target], bool]
Resolve = Callable[[str], Closure]

_ONE_KEY = re.compile(r"%\(([^)]+)\)s")


class PolicyError(Exception):
    """A rule that cannot be understood or compiled; the message names it."""


class Check:
    """One condition on a token and a target. `str()` gives its oslo.policy spelling."""

    __slots__ = ()
    binding = 2  # how tightly the spelling binds: and, or 0; not 1; a single check 2

    def __or__(self, other: Check) -> Check:
        return AnyOf((*_parts(AnyOf, self), *_parts(AnyOf, other)))

    def __and__(self, other: Check) -> Check:
        return AllOf((*_parts(AllOf, self), *_parts(AllOf, other)))

    def __invert__(self) -> Check:
        return Not(self)

    def compile(self, resolve: Resolve) -> Closure:
        raise NotImplementedError

    def spelled_in(self, binding: int) -> str:
        return str(self) if self.binding > binding else f"({self})"


class Always(Check):
    __slots__ = ()

    def __str__(self) -> str:
        return "@"

    def compile(self, resolve: Resolve) -> Closure:
        return lambda token, target: True


class Never(Check):
    __slots__ = ()

    def __str__(self) -> str:
        return "!"

    def compile(self, resolve: Resolve) -> Closure:
        return lambda token, target: False


class Role(Check):
    """The token bears the role, given or implied."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"role:{self.name}"

    def compile(self, resolve: Resolve) -> Closure:
        wanted = self.name.lower()
        if "%(" not in wanted:
            return lambda token, target: wanted in token.roles
        value = _target_value(self.name)

        def bears(token: Token, target: Target) -> bool:
            named = value(target)
            return named is not None and named.lower() in token.roles

        return bears


class Named(Check):
    """Another rule, by its name; an operator's override of that rule counts here too."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"rule:{self.name}"

    def compile(self, resolve: Resolve) -> Closure:
        return resolve(self.name)


class Same(Check):
    """A credential of the token equals a value of the target, for example `project_id:%(project_id)s`."""

    __slots__ = ("credential", "template")

    def __init__(self, credential: str, template: str | None = None) -> None:
        self.credential = credential
        self.template = f"%({credential})s" if template is None else template

    def __str__(self) -> str:
        return f"{self.credential}:{self.template}"

    def compile(self, resolve: Resolve) -> Closure:
        if self.credential == "is_admin":
            return self._is_admin(resolve)
        if self.credential == "project_id" and self.template == "%(project_id)s":
            return _same_project
        mine = _credential(self.credential)
        theirs = _target_value(self.template)

        def same(token: Token, target: Target) -> bool:
            wanted = theirs(target)
            return wanted is not None and mine(token) == wanted

        return same

    def _is_admin(self, resolve: Resolve) -> Closure:
        """`is_admin` is no fact of a token: it means whoever `context_is_admin` lets pass."""
        is_admin = resolve("context_is_admin")
        wanted = self.template.strip().lower()
        if wanted in ("true", "1"):
            return is_admin
        if wanted in ("false", "0"):
            return lambda token, target: not is_admin(token, target)
        raise PolicyError(f"'{self}': is_admin is compared with True or False only")


class Field(Check):
    """An attribute of the target has a value, for example `field:networks:shared=True`."""

    __slots__ = ("spelling",)

    def __init__(self, spelling: str) -> None:
        self.spelling = spelling

    def __str__(self) -> str:
        return f"field:{self.spelling}"

    def compile(self, resolve: Resolve) -> Closure:
        # The attribute may contain colons itself (router:external), the resource before it does not.
        attribute, equals, wanted = self.spelling.partition(":")[2].partition("=")
        if not attribute or not equals:
            raise PolicyError(f"'{self}' is not of the form field:resource:attribute=value")
        return lambda token, target: str(target.get(attribute)) == wanted


class Not(Check):
    __slots__ = ("check",)
    binding = 1

    def __init__(self, check: Check) -> None:
        self.check = check

    def __str__(self) -> str:
        return f"not {self.check.spelled_in(1)}"

    def compile(self, resolve: Resolve) -> Closure:
        inner = self.check.compile(resolve)
        return lambda token, target: not inner(token, target)


class AllOf(Check):
    __slots__ = ("checks",)
    binding = 0

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self.checks = checks

    def __str__(self) -> str:
        return " and ".join(check.spelled_in(0) for check in self.checks)

    def compile(self, resolve: Resolve) -> Closure:
        closures = tuple(check.compile(resolve) for check in self.checks)
        if len(closures) == 2:
            first, second = closures
            return lambda token, target: first(token, target) and second(token, target)

        def all_of(token: Token, target: Target) -> bool:
            for closure in closures:  # noqa: SIM110 - a generator would double the cost of the hot path
                if not closure(token, target):
                    return False
            return True

        return all_of


class AnyOf(Check):
    __slots__ = ("checks",)
    binding = 0

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self.checks = checks

    def __str__(self) -> str:
        return " or ".join(check.spelled_in(0) for check in self.checks)

    def compile(self, resolve: Resolve) -> Closure:
        closures = tuple(check.compile(resolve) for check in self.checks)
        if len(closures) == 2:
            first, second = closures
            return lambda token, target: first(token, target) or second(token, target)

        def any_of(token: Token, target: Target) -> bool:
            for closure in closures:  # noqa: SIM110 - a generator would double the cost of the hot path
                if closure(token, target):
                    return True
            return False

        return any_of


def _parts(kind: type[AnyOf] | type[AllOf], check: Check) -> tuple[Check, ...]:
    return check.checks if isinstance(check, kind) else (check,)


def _same_project(token: Token, target: Target) -> bool:
    project = token.project_id
    return project is not None and target.get("project_id") == project


_CREDENTIALS: dict[str, Callable[[Token], str | None]] = {
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


def _credential(name: str) -> Callable[[Token], str | None]:
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
    """What the right side of a check comes to for a target; None (which matches nothing) where a key is missing."""
    if "%(" not in template:
        return lambda target: template
    whole = _ONE_KEY.fullmatch(template)
    if whole is None:
        return lambda target: _filled(template, target)
    key = whole.group(1)

    def value(target: Target) -> str | None:
        found = target.get(key)
        return found if found is None or type(found) is str else str(found)

    return value


def _filled(template: str, target: Target) -> str | None:
    try:
        return template % target
    except KeyError:
        return None
