"""docs/api/authorization.md: who may call which route, drawn from the default rules. The tests call every route."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kilonova import compute, identity, image, network, share, volume
from kilonova.docs.markdown import code, table
from kilonova.docs.markdown import page as markdown
from kilonova.http import Api, Route
from kilonova.placement.build import build as build_placement
from kilonova.policy import Policy
from kilonova.policy.credentials import Credentials
from kilonova.policy.enforcer import DEFAULTS

ALL, OWN, OTHER, NONE = "all", "own", "other", "–"
OWN_PROJECT, OTHER_PROJECT = "own", "other"
DOMAIN, OTHER_DOMAIN = "default", "other"
NO_TOKEN = "no token"
TITLES = {
    "compute": "Compute",
    "placement": "Placement",
    "identity": "Identity",
    "image": "Image",
    "network": "Network",
    "volume": "Volume",
    "shared-file-system": "Share",
}
# Routes of the Compute API that only pass the request to another service, whose rule decides.
DECIDED_ELSEWHERE = {
    "GET /os-floating-ip-pools": "get_network",
    "GET /images": "get_images",
    "GET /images/detail": "get_images",
    "GET /images/{image_id}": "get_image",
    "DELETE /images/{image_id}": "delete_image",
    "GET /images/{image_id}/metadata": "get_image",
    "POST /images/{image_id}/metadata": "modify_image",
    "PUT /images/{image_id}/metadata": "modify_image",
    "GET /images/{image_id}/metadata/{key}": "get_image",
    "PUT /images/{image_id}/metadata/{key}": "modify_image",
    "DELETE /images/{image_id}/metadata/{key}": "modify_image",
}
# Routes that either of two rules allows.
ALTERNATIVES = {
    "os_compute_api:os-hypervisors:list": "os_compute_api:os-hypervisors:list-assigned",
    "os_compute_api:os-hypervisors:list-detail": "os_compute_api:os-hypervisors:list-assigned",
}
# Routes that create objects in the project of the token, so that a token without one is refused.
NEEDS_PROJECT = {
    "identity": {"POST /v3/users/{user_id}/application_credentials"},
    "compute": {"POST /os-server-groups", "POST /os-volumes", "POST /os-volumes_boot", "POST /servers"},
    "volume": {
        "POST /os-volume-transfer/{transfer_id}/accept",
        "POST /volume-transfers/{transfer_id}/accept",
        "POST /volumes",
    },
    "shared-file-system": {"POST /shares"},
}
# Routes that serve the project of the token only, whatever the roles.
OWN_PROJECT_ONLY = {"compute": {"GET /os-tenant-networks/{id}"}}

READS = frozenset({"GET", "HEAD"})
READING = "reading"
_VERSION = re.compile(r"v[0-9.]+")

Project = tuple[str, str] | None
_PROJECT: Project = (OWN_PROJECT, DOMAIN)


def _caller(name: str, project: Project, *roles: str, domain: str | None = None) -> Credentials:
    return Credentials(
        user_id=name,
        user_name=name,
        user_domain_id=DOMAIN,
        user_domain_name=DOMAIN,
        project_id=project[0] if project else None,
        project_name=project[0] if project else None,
        project_domain_id=project[1] if project else None,
        domain_id=domain,
        system=project is None and domain is None,
        roles=frozenset(roles),
    )


CALLERS = {
    "reader": _caller("reader", _PROJECT, "reader"),
    "member": _caller("member", _PROJECT, "reader", "member"),
    "manager": _caller("manager", _PROJECT, "reader", "member", "manager"),
    "project admin": _caller("project admin", _PROJECT, "reader", "member", "manager", "admin"),
    "system reader": _caller("system reader", None, "reader"),
    "system admin": _caller("system admin", None, "reader", "member", "manager", "admin"),
    "service": _caller("service", ("service", DOMAIN), "service"),
}
# Callers for the Identity API only: the others know projects, and the system.
DOMAIN_CALLERS = {
    "domain reader": _caller("domain reader", None, "reader", domain=DOMAIN),
    "domain manager": _caller("domain manager", None, "reader", "member", "manager", domain=DOMAIN),
}
# Tokens with fewer rights than others of the same user and with the same roles, those of the caller `member`. Only the
# Identity API refuses more to them.
DELEGATED_CALLERS = {
    "trust": _caller("trust", _PROJECT, "reader", "member"),
    "application credential": _caller("application credential", _PROJECT, "reader", "member"),
}
# Routes of the Identity API that refuse them, whatever their roles.
_OF_CREDENTIALS = {
    *(f"{method} /v3/credentials" for method in ("GET", "POST")),
    *(f"{method} /v3/credentials/{{credential_id}}" for method in ("GET", "PATCH", "DELETE")),
    *(f"{method} /v3/users/{{user_id}}/credentials/OS-EC2" for method in ("GET", "POST")),
    *(f"{method} /v3/users/{{user_id}}/credentials/OS-EC2/{{credential_id}}" for method in ("GET", "DELETE")),
}
_OF_APPLICATION_CREDENTIALS = {
    "POST /v3/users/{user_id}/application_credentials",
    "DELETE /v3/users/{user_id}/application_credentials/{application_credential_id}",
    "DELETE /v3/users/{user_id}/access_rules/{access_rule_id}",
}
_CREATE_TRUST, _DELETE_TRUST = "POST /v3/OS-TRUST/trusts", "DELETE /v3/OS-TRUST/trusts/{trust_id}"
REFUSES_DELEGATED = {
    "trust": _OF_CREDENTIALS | _OF_APPLICATION_CREDENTIALS | {_CREATE_TRUST},
    "application credential": _OF_CREDENTIALS | _OF_APPLICATION_CREDENTIALS | {_CREATE_TRUST, _DELETE_TRUST},
}


class Row(NamedTuple):
    """A rule of a route. `rule` is empty if no rule decides; `access` is by caller."""

    route: Route
    rule: str
    access: Mapping[str, str]
    # Whether the rule decides about the route, or only about a part of the request or response.
    decides: bool


def build_apis() -> list[Api]:
    return [
        compute.build(),
        build_placement(),
        identity.build(),
        image.build(),
        network.build(),
        volume.build(),
        share.build(),
    ]


def callers_of(api: Api) -> dict[str, Credentials]:
    return {**CALLERS, **DOMAIN_CALLERS, **DELEGATED_CALLERS} if api.name == "identity" else CALLERS


def rows(api: Api) -> Iterator[Row]:
    policy = Policy()
    routes = (*api.document_routes.values(), *api.routes.values())
    for route in sorted(routes, key=lambda route: (route.path, route.method, route.action or "")):
        first, *further = rules_of(api, route)
        alternative = ALTERNATIVES.get(first)
        decides = f"{first} or {alternative}" if alternative else first
        yield Row(route, decides, _access(policy, decides, api, route), decides=True)
        for rule in further:
            if rule != alternative:
                yield Row(route, rule, _access(policy, rule, api), decides=False)


def rules_of(api: Api, route: Route) -> list[str]:
    """The rule that decides, or "", and the rules of parts: other checks of the handler, and rules below the first."""
    delegated = DECIDED_ELSEWHERE.get(route.key) if api.name == "compute" else None
    declared = [rule for rule in (delegated, route.policy, *route.checks) if rule]
    if not declared or (route.authenticated and not delegated):
        return ["", *declared]
    below = [name for name in DEFAULTS if name.startswith(f"{declared[0]}:")]
    return list(dict.fromkeys((*declared, *below)))


def _access(policy: Policy, rules: str, api: Api, route: Route | None = None) -> dict[str, str]:
    """`route` is the route of `api` that the rules decide about, or None for a part of one."""
    callers = callers_of(api)
    if route is not None and route.ticket:
        return dict.fromkeys((NO_TOKEN, *callers), NONE)
    access = {NO_TOKEN: ALL if route is not None and route.public else NONE}
    for name, caller in callers.items():
        own, other = (
            not rules or any(policy.allows(rule, caller, target) for rule in rules.split(" or "))
            for target in targets(caller)
        )
        if route is not None and route.policy is not None:
            other = own and other  # such a rule is asked about the caller's own project
        if route is not None:
            own_only = route.key in OWN_PROJECT_ONLY.get(api.name, ())
            other = other and not own_only
            if route.key in REFUSES_DELEGATED.get(name, ()):
                own = other = False
            if caller.project_id is None and (own_only or route.key in NEEDS_PROJECT.get(api.name, ())):
                own = other = False
        access[name] = {(True, True): ALL, (True, False): OWN, (False, True): OTHER, (False, False): NONE}[own, other]
    return access


def targets(caller: Credentials) -> tuple[dict[str, object], dict[str, object]]:
    """An object of the caller's project and user, and one of others. Both are private."""
    return _target(OWN_PROJECT, caller.user_id, DOMAIN), _target(OTHER_PROJECT, "somebody", OTHER_DOMAIN)


def _target(project: str, user: str, domain: str) -> dict[str, object]:
    return {
        **dict.fromkeys(("project_id", "tenant_id", "owner", "member_id", "target.project.id"), project),
        **dict.fromkeys(("user_id", "target.user.id", "target.token.user_id", "target.credential.user_id"), user),
        **dict.fromkeys(("network:project_id", "network:tenant_id"), project),
        **dict.fromkeys(("target.domain.id", "target.domain_id"), domain),
        **{f"target.trust.{who}_user_id": user for who in ("trustor", "trustee")},
        **{f"target.{noun}.domain_id": domain for noun in ("user", "group", "project")},
        "target.limit.project_id": project,
        "target.limit.project.domain_id": domain,
        "target.role.name": "member",
        "visibility": "private",
        "shared": False,
        "router:external": False,
    }


SYSTEM_CALLERS = [name for name, caller in CALLERS.items() if caller.system]


def system_scope(api: Api) -> Iterator[tuple[str, dict[str, str]]]:
    """What tokens with system scope may do, by group of routes: those whose paths begin with the same noun.

    Routes without a rule are left out.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows(api):
        if row.decides and row.rule and not row.route.ticket:
            groups.setdefault(_group(row.route.path), []).append(row)
    for group, found in groups.items():
        yield group, {caller: _summary(found, caller) for caller in SYSTEM_CALLERS}


def _group(path: str) -> str:
    """The path up to its first noun."""
    version, *rest = path.strip("/").split("/")
    return f"/{version}/{rest[0]}" if rest and _VERSION.fullmatch(version) else f"/{version}"


def _summary(found: Sequence[Row], caller: str) -> str:
    """The shortest description of the routes that the caller may use."""
    allowed = [row for row in found if row.access[caller] != NONE]
    own = [row for row in allowed if row.access[caller] == OWN]
    if not allowed or own == list(found):
        return OWN if own else NONE
    words = ALL if allowed == list(found) else _selection(found, allowed)
    return f"{words}; {OWN} objects only: {_keys(own)}" if own else words


def _selection(found: Sequence[Row], allowed: Sequence[Row]) -> str:
    reads = [row for row in found if row.route.method in READS]
    writes = [row for row in allowed if row not in reads]
    refused = [row for row in found if row not in allowed]
    possible = [("only ", allowed), (f"{ALL} but ", refused)]
    if reads and all(row in allowed for row in reads):
        possible.append((f"{READING}, and " if writes else READING, writes))
    words, named = min(possible, key=lambda each: len(each[1]))
    return words + _keys(named)


def _keys(found: Sequence[Row]) -> str:
    return ", ".join(code(row.route.key) for row in found)


def _system_scope_tables() -> Iterator[str]:
    for api in build_apis():
        groups = [[code(group), *may.values()] for group, may in system_scope(api)]
        yield f"**{TITLES[api.name]}**"
        yield table(["Routes below", *SYSTEM_CALLERS], groups)


def page(root: Path) -> str:
    parts: list[str] = [
        "## Tokens with system scope",
        "These tables show what a token with system scope may do, by group of routes: all routes whose paths begin "
        f"alike. `{ALL}`: every route of the group, for the objects of every project. `{READING}`: the routes with the "
        f"methods {' and '.join(sorted(READS))}. `{OWN}`: for objects of the token's user. `{NONE}`: none. Routes "
        "without a rule are left out: every token may call them. A service may also refuse a route to all callers, "
        "because it does not support it. The tables of the services below have each route.",
        *_system_scope_tables(),
        "## Tokens of trusts and application credentials",
        "A token has the roles that its user has in its scope. The token of a trust or an application credential has "
        "only the roles of this trust or credential. Services treat it like every token of its user with these roles. "
        "Only these routes of the Identity API refuse more to it. The table is for a trust that impersonates its "
        "trustor, a member, and for an application credential of a member.",
        _delegated_table(),
        "- Neither token can be used to get another token.\n"
        "- A token of a trust may create a trust only to pass on its own, and only if that allows it.\n"
        "- An application credential with the option `unrestricted` and without access rules may create and delete "
        "application credentials.\n"
        "- If an application credential has access rules, every service answers 401 to requests that no rule names. "
        "`GET /v3/auth/tokens` needs no rule, nor does a request with the header `X-Service-Token`, which is the token "
        "of a user with the role service.",
    ]
    for api in build_apis():
        columns = [NO_TOKEN, *(caller for caller in callers_of(api) if caller not in DELEGATED_CALLERS)]
        cells = [_cells(row, columns) for row in rows(api)]
        parts += [f"## {TITLES[api.name]}", table(["Route", "Rule", *columns], cells)]
    callers = [
        [name, ", ".join(sorted(caller.roles)), "system" if caller.system else "a project"]
        for name, caller in CALLERS.items()
    ]
    callers += [[name, ", ".join(sorted(caller.roles)), "a domain"] for name, caller in DOMAIN_CALLERS.items()]
    return markdown(
        "# Authorization",
        "Here you find who may call each route with the default rules of [policy.yaml](../policy.yaml). "
        "`tests/authorization` calls every route as each of these callers, for an object of their own project and for "
        "one of another project, and compares the answers with this page.",
        table(["Caller", "Roles", "Scope of the token"], callers),
        f"- `{ALL}`: allowed for the objects of every project. `{OWN}`: allowed for objects of the project of the "
        "token, or of its user where objects belong to users, or of its domain where objects belong to domains; lists "
        "show only these. "
        f"`{OTHER}`: allowed for objects of other projects only. `{NONE}`: refused.\n"
        "- A caller without a valid token is refused with 401. Another refused caller gets 403, or 404 if it may not "
        "even see the object.\n"
        "- A row that begins with ↳ is a further rule of the route above it. It decides about a part of the request, "
        "such as a named host, or about a part of the response; [policy.yaml](../policy.yaml) describes each. "
        "The part is allowed if both rows allow it.\n"
        "- Callers with a token for a domain are shown for the Identity API only. Managers of a domain assign the "
        "roles manager, member and reader to users and groups of the domain, on the domain and its projects.\n"
        "- The rules `identity:…_domain_role` decide alone about roles that belong to a domain.\n"
        "- Hosts have tickets instead of tokens: see [0022](../decisions/0022-tickets.md). No token opens a route for "
        "tickets.\n"
        "- A token without a project is refused where a new object would belong to the project of the token.\n"
        "- The objects of this page are private. Every project may see public and community images, shared and "
        "external networks, public flavors and types, and images that are shared with it.\n"
        "- The owner of a network may see and delete the ports of other projects in it.\n"
        "- A project that knows the key of a volume transfer may accept the transfer of another project's volume.\n"
        "- The service user of the cloud has the roles admin and service. The column service shows what the role "
        "service alone allows.\n"
        "- Users may list the trusts in whose filters they name themselves as trustor or trustee.",
        *parts,
    )


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    rule = "ticket of a host" if row.route.ticket else code(row.rule)
    return [code(row.route.key) if row.decides else "↳", rule, *(row.access[column] for column in columns)]


def _delegated_table() -> str:
    """The routes that refuse more to delegated callers than to a member."""
    columns = ["member", *DELEGATED_CALLERS]
    differing = [row for row in rows(identity.build()) if len({row.access[column] for column in columns}) > 1]
    return table(["Route", *columns], [[_cells(row, columns)[0], *_cells(row, columns)[2:]] for row in differing])
