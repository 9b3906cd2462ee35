"""Parses the query of `GET /allocation_candidates` and of `GET /resource_providers`.

Microversions declare the keys, and as behaviours the permitted forms of their values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kilonova.http.errors import BadRequest
from kilonova.http.filter_values import limited
from kilonova.http.versions import Behaviour
from kilonova.ids import is_uuid
from kilonova.placement import errors
from kilonova.placement.api import api
from kilonova.placement.candidates.model import UNNUMBERED, RequestGroup, ResourceRequest
from kilonova.placement.names import unknown_classes, unknown_traits
from kilonova.placement.rest.lookup import normalize_uuid
from kilonova.store import Reader

Query = Mapping[str, Sequence[str]]
HasBehaviour = Callable[[Behaviour], bool]

FORBIDDEN_TRAITS = api.behaviour("traits can be forbidden")
ANY_TRAITS = api.behaviour("one of several traits can be required, and `required` be repeated")
SEVERAL_AGGREGATES = api.behaviour("`member_of` can be repeated")
FORBIDDEN_AGGREGATES = api.behaviour("aggregates can be forbidden")
NUMBERED = api.behaviour("candidates have numbered groups")
RESOURCELESS = api.behaviour("numbered groups of one subtree may be without resources")

MAX_AMOUNT = 2**31 - 1
_NUMBER = re.compile(r"-?[0-9]+")
_TRAITS, _FORBIDDEN_TRAITS = "HW_CPU_X86_VMX,CUSTOM_MAGIC", "HW_CPU_X86_VMX,!CUSTOM_MAGIC"


class Traits(NamedTuple):
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()

    def conflicting(self) -> list[str]:
        return sorted({name for any_of in self.required if len(any_of) == 1 for name in any_of} & self.forbidden)


def bad_query(message: str, code: str = errors.BAD_VALUE) -> BadRequest:
    return BadRequest(f"Invalid query string parameters: {message}", code=code)


# Whole queries


def parse_request(query: Query, has_behaviour: HasBehaviour) -> ResourceRequest:
    """The request of `GET /allocation_candidates`."""
    query = {key: [value.strip() for value in values] for key, values in query.items()}
    suffixes = _group_suffixes(query)
    subtrees = _parse_subtrees(query.get("same_subtree", ()), suffixes)
    _check_groups(query, suffixes, frozenset().union(*subtrees), has_behaviour)
    groups = {suffix: parse_group(query, suffix, has_behaviour) for suffix in suffixes}
    conflicts = {suffix: names for suffix, found in groups.items() if (names := _conflicting_traits(found))}
    if conflicts:
        named = ", ".join(f"required{suffix}: ({', '.join(names)})" for suffix, names in conflicts.items())
        raise bad_query(f"Conflicting required and forbidden traits found in the following traits keys: {named}")
    root = _parse_root_required(query)
    return ResourceRequest(
        groups=groups,
        isolate=_parse_isolate(query, groups),
        same_subtree=subtrees,
        root_required=frozenset().union(*root.required),
        root_forbidden=root.forbidden,
    )


def parse_group(query: Query, suffix: str, has_behaviour: HasBehaviour) -> RequestGroup:
    """One request group. The group without a suffix is also the filter of `GET /resource_providers`."""
    found = parse_traits(f"required{suffix}", query.get(f"required{suffix}", ()), has_behaviour)
    member_of, forbidden_aggregates = parse_aggregates(query.get(f"member_of{suffix}", ()), has_behaviour)
    return RequestGroup(
        resources=parse_resources(query[f"resources{suffix}"][-1]) if f"resources{suffix}" in query else {},
        required=found.required,
        forbidden=found.forbidden,
        member_of=member_of,
        forbidden_aggregates=forbidden_aggregates,
        in_tree=parse_tree(query[f"in_tree{suffix}"][-1]) if f"in_tree{suffix}" in query else None,
    )


def parse_limit(query: Query) -> int | None:
    values = query.get("limit")
    return min(int(values[0][:10]), MAX_AMOUNT) if values else None


async def check_names_exist(reader: Reader, request: ResourceRequest) -> None:
    """Raise BadRequest if a class or a trait does not exist."""
    classes = {name for group in request.groups.values() for name in group.resources}
    for name in await unknown_classes(reader, classes):
        raise bad_query(f"Invalid resource class in resources parameter: No such resource class {name}.")
    names = set(request.root_required | request.root_forbidden)
    for group in request.groups.values():
        names |= group.forbidden.union(*group.required)
    if missing := await unknown_traits(reader, names):
        raise bad_query(f"No such trait(s): {', '.join(missing)}.")


# Groups and their relations


def _group_suffixes(query: Query) -> list[str]:
    """The suffixes of the groups, sorted: the empty suffix of the unnumbered group is first."""
    found = {
        key.removeprefix(kind)
        for key in query
        for kind in ("resources", "required", "member_of", "in_tree")
        if key.startswith(kind)
    }
    return sorted(found)


def _check_groups(query: Query, suffixes: list[str], together: Collection[str], has_behaviour: HasBehaviour) -> None:
    """Check that each group has resources, or is named by `same_subtree`, and that at least one has resources."""
    without = [suffix for suffix in suffixes if f"resources{suffix}" not in query]
    if not has_behaviour(NUMBERED):
        if without or not suffixes:
            raise bad_query("'resources' is a required property\n\nFailed validating 'required' in schema")
        return
    if not suffixes:
        raise bad_query(
            "At least one request group (`resources` or `resources{$S}`) is required.", errors.MISSING_VALUE
        )
    if not has_behaviour(RESOURCELESS):
        _check_orphans(query, without)
        return
    if without == suffixes:
        _check_orphans(query, [suffix for suffix in without if suffix == UNNUMBERED])
        raise bad_query("There must be at least one resources or resources[$S] parameter.", errors.MISSING_VALUE)
    _check_orphans(query, [suffix for suffix in without if suffix == UNNUMBERED])
    if alone := [suffix for suffix in without if suffix not in together]:
        raise bad_query(
            "Resourceless suffixed group request should be specified in `same_subtree` query param: "
            f"bad group(s) - {', '.join(alone)}."
        )


def _check_orphans(query: Query, without: list[str]) -> None:
    for kind, name, message in (
        ("required", "traits", "All traits parameters must be associated with resources."),
        ("member_of", "member_of", "All member_of parameters must be associated with resources."),
        ("in_tree", "in_tree", "All request groups must specify resources."),
    ):
        orphans = [f"{kind}{suffix}" for suffix in without if f"{kind}{suffix}" in query]
        if orphans:
            raise bad_query(f"{message} Found the following orphaned {name} keys: {', '.join(orphans)}")


def _parse_isolate(query: Query, groups: Mapping[str, RequestGroup]) -> bool:
    policy = query.get("group_policy")
    if policy is None and sum(1 for suffix, group in groups.items() if suffix and group.resources) > 1:
        raise bad_query(
            'The "group_policy" parameter is required when specifying more than one "resources{N}" parameter.'
        )
    return policy is not None and policy[0] == "isolate"


def _parse_subtrees(values: Iterable[str], suffixes: list[str]) -> tuple[frozenset[str], ...]:
    found = []
    for value in values:
        together = frozenset(limited("same_subtree", value.split(",")))
        if UNNUMBERED in together:
            raise bad_query("Empty string (unsuffixed group) can not be specified in `same_subtree`")
        if unknown := sorted(together.difference(suffixes)):
            raise bad_query(f"Real suffixes should be specified in `same_subtree`: {', '.join(unknown)[:200]}")
        found.append(together)
    return tuple(found)


def _parse_root_required(query: Query) -> Traits:
    values = query.get("root_required", ())
    if len(values) > 1:
        raise bad_query("Query parameter 'root_required' may be specified only once.", errors.DUPLICATE_KEY)
    found = parse_traits("root_required", values, lambda name: name == FORBIDDEN_TRAITS)
    if conflicts := found.conflicting():
        raise bad_query(f"Conflicting required and forbidden traits found in root_required: {', '.join(conflicts)}")
    return found


def _conflicting_traits(group: RequestGroup) -> list[str]:
    return Traits(group.required, group.forbidden).conflicting()


# Values


def parse_resources(text: str) -> dict[str, int]:
    """`VCPU:2,MEMORY_MB:1024`"""
    found = {}
    for part in limited("resources", text.split(",")):
        name, colon, amount = part.partition(":")
        if not name or not colon:
            raise bad_query(
                "Badly formed resources parameter. Expected resources query string parameter in form: "
                f"?resources=VCPU:2,MEMORY_MB:1024. Got: {part[:200] if text else 'empty string'}."
            )
        found[name] = _parse_amount(name[:255], amount)
    return found


def _parse_amount(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise bad_query(f"Requested resource {name} expected positive integer amount. Got: {text[:40]}.")
    # Eleven characters are enough to exceed the range, and `int` refuses very long numbers.
    number = int(text[:11])
    if number < 1:
        raise bad_query(f"Requested resource {name} requires amount >= 1. Got: {text[:40]}.")
    if number > MAX_AMOUNT:
        raise bad_query(f"Requested resource {name} requires amount <= {MAX_AMOUNT}. Got: {text[:40]}.")
    return number


def parse_traits(key: str, values: Sequence[str], has_behaviour: HasBehaviour) -> Traits:
    """`T1,!T2` requires T1 and forbids T2, `in:T1,T2` requires one of them. Repeated keys apply together."""
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values if has_behaviour(ANY_TRAITS) else values[-1:]:
        if value.startswith("in:"):
            required.append(_parse_any_trait(key, value, has_behaviour))
            continue
        for name in _split_traits(key, value, has_behaviour(FORBIDDEN_TRAITS)):
            if name.startswith("!"):
                forbidden.add(name[1:])
            else:
                required.append(frozenset((name,)))
    return Traits(tuple(dict.fromkeys(required)), frozenset(forbidden))


def _parse_any_trait(key: str, value: str, has_behaviour: HasBehaviour) -> frozenset[str]:
    if not has_behaviour(ANY_TRAITS):
        raise bad_query(
            f"Expected '{key}' parameter value of the form: {_FORBIDDEN_TRAITS}. "
            f"The format 'in:{_TRAITS}' only supported since microversion 1.39. Got: {value[:200]}"
        )
    names = limited(key, value.removeprefix("in:").split(","))
    if not all(names) or any(name.startswith("!") for name in names):
        raise bad_query(
            f"Expected '{key}' parameter value of the form: {_FORBIDDEN_TRAITS} or in:{_TRAITS}, "
            f"where in: takes no forbidden traits. Got: {value[:200]}"
        )
    return frozenset(names)


def _split_traits(key: str, value: str, negative: bool) -> list[str]:
    names = limited(key, value.split(","))
    if not all(name.removeprefix("!") if negative else name and name[0] != "!" for name in names):
        form = _FORBIDDEN_TRAITS if negative else _TRAITS
        raise bad_query(f"Expected '{key}' parameter value of the form: {form}. Got: {value[:200]}")
    return names


def parse_aggregates(
    values: Sequence[str], has_behaviour: HasBehaviour
) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """`A` and `in:A,B` require one of the aggregates, `!A` and `!in:A,B` forbid all of them."""
    if len(values) > 1 and not has_behaviour(SEVERAL_AGGREGATES):
        raise bad_query("Multiple member_of parameters are not supported", errors.DUPLICATE_KEY)
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        if not value.startswith("!"):
            required.append(_parse_aggregate_set(value))
        elif has_behaviour(FORBIDDEN_AGGREGATES):
            forbidden |= _parse_aggregate_set(value[1:])
        else:
            raise bad_query("Forbidden member_of parameters are not supported in the specified microversion")
    return tuple(dict.fromkeys(required)), frozenset(forbidden)


def _parse_aggregate_set(value: str) -> frozenset[str]:
    if not value.startswith("in:") and "," in value:
        raise bad_query(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            "using the valid microversion."
        )
    names = limited("member_of", value.removeprefix("in:").split(","))
    if not all(is_uuid(name) for name in names):
        raise bad_query("Expected 'member_of' parameter to contain valid UUID(s).")
    return frozenset(names)


def parse_tree(value: str) -> str:
    if not is_uuid(value):
        raise bad_query("Expected 'in_tree' parameter to be a format of uuid")
    return normalize_uuid(value)
