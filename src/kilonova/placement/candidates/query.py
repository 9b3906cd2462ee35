"""What is asked for, read from the query of `GET /allocation_candidates` and of `GET /resource_providers`.

Which keys there are is declared by the microversions; what their values may say is a behaviour of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kilonova.http.errors import BadRequest
from kilonova.ids import is_uuid
from kilonova.placement import errors
from kilonova.placement.candidates.model import UNNUMBERED, Ask, Group
from kilonova.placement.names import unknown_classes, unknown_traits
from kilonova.placement.rest.common import canonical
from kilonova.store import Reader

Query = Mapping[str, Sequence[str]]
Behaves = Callable[[str], bool]

FORBIDDEN_TRAITS = "traits can be forbidden"
ANY_TRAITS = "one of several traits can be required, and `required` be repeated"
SEVERAL_AGGREGATES = "`member_of` can be repeated"
FORBIDDEN_AGGREGATES = "aggregates can be forbidden"
NUMBERED = "candidates have numbered groups"
RESOURCELESS = "numbered groups of one subtree may be without resources"

MOST = 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]+")
_TRAITS, _FORBIDDEN_TRAITS = "HW_CPU_X86_VMX,CUSTOM_MAGIC", "HW_CPU_X86_VMX,!CUSTOM_MAGIC"


class Traits(NamedTuple):
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()

    def conflicting(self) -> list[str]:
        return sorted({name for any_of in self.required if len(any_of) == 1 for name in any_of} & self.forbidden)


def wrong(message: str, code: str = errors.BAD_VALUE) -> BadRequest:
    return BadRequest(f"Invalid query string parameters: {message}", code=code)


# Whole queries


def candidates(query: Query, behaves: Behaves) -> Ask:
    """The ask of `GET /allocation_candidates`."""
    query = {key: [value.strip() for value in values] for key, values in query.items()}
    suffixes = _suffixes(query)
    subtrees = _subtrees(query.get("same_subtree", ()), suffixes)
    _check_groups(query, suffixes, frozenset().union(*subtrees), behaves)
    groups = {suffix: group(query, suffix, behaves) for suffix in suffixes}
    conflicts = {f"required{suffix}": _conflict(found) for suffix, found in groups.items() if _conflict(found)}
    if conflicts:
        named = ", ".join(f"{key}: ({', '.join(names)})" for key, names in conflicts.items())
        raise wrong(f"Conflicting required and forbidden traits found in the following traits keys: {named}")
    root = _root_required(query)
    return Ask(
        groups=groups,
        isolate=_isolate(query, groups),
        same_subtree=subtrees,
        root_required=frozenset().union(*root.required),
        root_forbidden=root.forbidden,
    )


def group(query: Query, suffix: str, behaves: Behaves) -> Group:
    """One group of resources; the one without a suffix is also what `GET /resource_providers` filters by."""
    found = traits(f"required{suffix}", query.get(f"required{suffix}", ()), behaves)
    member_of, forbidden_aggregates = aggregates(query.get(f"member_of{suffix}", ()), behaves)
    return Group(
        resources=resources(query[f"resources{suffix}"][-1]) if f"resources{suffix}" in query else {},
        required=found.required,
        forbidden=found.forbidden,
        member_of=member_of,
        forbidden_aggregates=forbidden_aggregates,
        in_tree=tree(query[f"in_tree{suffix}"][-1]) if f"in_tree{suffix}" in query else None,
    )


def limit(query: Query) -> int | None:
    values = query.get("limit")
    return min(int(values[0][:10]), MOST) if values else None


async def check_names(reader: Reader, ask: Ask) -> None:
    """400 if a class or a trait does not exist."""
    classes = {name for group in ask.groups.values() for name in group.resources}
    for name in await unknown_classes(reader, classes):
        raise wrong(f"Invalid resource class in resources parameter: No such resource class {name}.")
    names = set(ask.root_required | ask.root_forbidden)
    for group in ask.groups.values():
        names |= group.forbidden.union(*group.required)
    if missing := await unknown_traits(reader, names):
        raise wrong(f"No such trait(s): {', '.join(missing)}.")


# Groups and how they belong together


def _suffixes(query: Query) -> list[str]:
    """The suffixes of the groups, that of the unnumbered one first."""
    found = {
        key.removeprefix(kind)
        for key in query
        for kind in ("resources", "required", "member_of", "in_tree")
        if key.startswith(kind)
    }
    return sorted(found)


def _check_groups(query: Query, suffixes: list[str], together: Collection[str], behaves: Behaves) -> None:
    """Groups need resources; those named by `same_subtree` do without, unless all do."""
    without = [suffix for suffix in suffixes if f"resources{suffix}" not in query]
    if not behaves(NUMBERED):
        if without or not suffixes:
            raise wrong("'resources' is a required property\n\nFailed validating 'required' in schema")
        return
    if not suffixes:
        raise wrong("At least one request group (`resources` or `resources{$S}`) is required.", errors.MISSING_VALUE)
    if not behaves(RESOURCELESS):
        _refuse_orphans(query, without)
        return
    if without == suffixes:
        _refuse_orphans(query, [suffix for suffix in without if suffix == UNNUMBERED])
        raise wrong("There must be at least one resources or resources[$S] parameter.", errors.MISSING_VALUE)
    _refuse_orphans(query, [suffix for suffix in without if suffix == UNNUMBERED])
    if alone := [suffix for suffix in without if suffix not in together]:
        raise wrong(
            "Resourceless suffixed group request should be specified in `same_subtree` query param: "
            f"bad group(s) - {', '.join(alone)}."
        )


def _refuse_orphans(query: Query, without: list[str]) -> None:
    for kind, name, said in (
        ("required", "traits", "All traits parameters must be associated with resources."),
        ("member_of", "member_of", "All member_of parameters must be associated with resources."),
        ("in_tree", "in_tree", "All request groups must specify resources."),
    ):
        orphans = [f"{kind}{suffix}" for suffix in without if f"{kind}{suffix}" in query]
        if orphans:
            raise wrong(f"{said} Found the following orphaned {name} keys: {', '.join(orphans)}")


def _isolate(query: Query, groups: Mapping[str, Group]) -> bool:
    policy = query.get("group_policy")
    if policy is None and sum(1 for suffix, group in groups.items() if suffix and group.resources) > 1:
        raise wrong('The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.')
    return policy is not None and policy[0] == "isolate"


def _subtrees(values: Iterable[str], suffixes: list[str]) -> tuple[frozenset[str], ...]:
    found = []
    for value in values:
        together = frozenset(value.split(","))
        if UNNUMBERED in together:
            raise wrong("Empty string (unsuffixed group) can not be specified in `same_subtree`")
        if unknown := sorted(together.difference(suffixes)):
            raise wrong(f"Real suffixes should be specified in `same_subtree`: {', '.join(unknown)[:200]}")
        found.append(together)
    return tuple(found)


def _root_required(query: Query) -> Traits:
    values = query.get("root_required", ())
    if len(values) > 1:
        raise wrong("Query parameter 'root_required' may be specified only once.", errors.DUPLICATE_KEY)
    found = traits("root_required", values, lambda name: name == FORBIDDEN_TRAITS)
    if conflicts := found.conflicting():
        raise wrong(f"Conflicting required and forbidden traits found in root_required: {', '.join(conflicts)}")
    return found


def _conflict(group: Group) -> list[str]:
    return Traits(group.required, group.forbidden).conflicting()


# Values


def resources(text: str) -> dict[str, int]:
    """`VCPU:2,MEMORY_MB:1024`"""
    found = {}
    for part in text.split(","):
        name, colon, amount = part.partition(":")
        if not name or not colon:
            raise wrong(
                "Badly formed resources parameter. Expected resources query string parameter in form: "
                f"?resources=VCPU:2,MEMORY_MB:1024. Got: {part[:200] if text else 'empty string'}."
            )
        found[name] = _amount(name[:255], amount)
    return found


def _amount(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise wrong(f"Requested resource {name} expected positive integer amount. Got: {text[:40]}.")
    # Eleven characters are enough to be out of range, and endless ones are more than `int` takes.
    number = int(text[:11])
    if number < 1:
        raise wrong(f"Requested resource {name} requires amount >= 1. Got: {text[:40]}.")
    if number > MOST:
        raise wrong(f"Requested resource {name} requires amount <= {MOST}. Got: {text[:40]}.")
    return number


def traits(key: str, values: Sequence[str], behaves: Behaves) -> Traits:
    """`T1,!T2` for T1 and not T2, `in:T1,T2` for one of them; what is said several times holds all together."""
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values if behaves(ANY_TRAITS) else values[-1:]:
        if value.startswith("in:"):
            required.append(_any_trait(key, value, behaves))
            continue
        for name in _trait_names(key, value, behaves(FORBIDDEN_TRAITS)):
            if name.startswith("!"):
                forbidden.add(name[1:])
            else:
                required.append(frozenset((name,)))
    return Traits(tuple(dict.fromkeys(required)), frozenset(forbidden))


def _any_trait(key: str, value: str, behaves: Behaves) -> frozenset[str]:
    if not behaves(ANY_TRAITS):
        raise wrong(
            f"Expected '{key}' parameter value of the form: {_FORBIDDEN_TRAITS}. "
            f"The format 'in:{_TRAITS}' only supported since microversion 1.39. Got: {value[:200]}"
        )
    names = value.removeprefix("in:").split(",")
    if not all(names) or any(name.startswith("!") for name in names):
        raise wrong(
            f"Expected '{key}' parameter value of the form: {_FORBIDDEN_TRAITS} or in:{_TRAITS}, "
            f"where in: takes no forbidden traits. Got: {value[:200]}"
        )
    return frozenset(names)


def _trait_names(key: str, value: str, negative: bool) -> list[str]:
    names = value.split(",")
    if not all(name.removeprefix("!") if negative else name and name[0] != "!" for name in names):
        form = _FORBIDDEN_TRAITS if negative else _TRAITS
        raise wrong(f"Expected '{key}' parameter value of the form: {form}. Got: {value[:200]}")
    return names


def aggregates(values: Sequence[str], behaves: Behaves) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """`A`, `in:A,B` for one of them, `!A` and `!in:A,B` for none of them."""
    if len(values) > 1 and not behaves(SEVERAL_AGGREGATES):
        raise wrong("Multiple member_of parameters are not supported", errors.DUPLICATE_KEY)
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        if not value.startswith("!"):
            required.append(_aggregates(value))
        elif behaves(FORBIDDEN_AGGREGATES):
            forbidden |= _aggregates(value[1:])
        else:
            raise wrong("Forbidden member_of parameters are not supported in the specified microversion")
    return tuple(dict.fromkeys(required)), frozenset(forbidden)


def _aggregates(value: str) -> frozenset[str]:
    if not value.startswith("in:") and "," in value:
        raise wrong(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            "using the valid microversion."
        )
    names = value.removeprefix("in:").split(",")
    if not all(is_uuid(name) for name in names):
        raise wrong("Expected 'member_of' parameter to contain valid UUID(s).")
    return frozenset(canonical(name) for name in names)


def tree(value: str) -> str:
    if not is_uuid(value):
        raise wrong("Expected 'in_tree' parameter to be a format of uuid")
    return canonical(value)
