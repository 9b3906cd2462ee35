"""Access rules of application credentials: a token with rules may only send the requests that one of them names.

The path of a rule may contain `*` and `{name}`, which match within a segment, and `**`, which matches slashes too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kilonova.http.authentication import is_sent_by_service
from kilonova.http.errors import Unauthorized

if TYPE_CHECKING:
    from kilonova.http.api import Actions, Route
    from kilonova.http.context import Context

# Whether the token of the request that is being served has access rules. Requests to other services that pass on such a
# token need a service token too.
is_restricted: ContextVar[bool] = ContextVar("is_restricted", default=False)

_MAX_PATH_LENGTH = 2048
_TOKEN = re.compile(r"\{[^}/]*\}|\*\*+|\*|.", re.DOTALL)


async def check(ctx: Context, method: str, segments: Iterable[str], routes: Collection[Route | Actions]) -> None:
    """Refuse a request that no rule of its token allows, unless a service passes it on.

    `segments` are the path below the version, and `routes` those that the request may mean. The path of a rule begins
    below the mount point of the API, or with it.
    """
    rules = ctx.token.access_rules
    is_restricted.set(rules is not None)
    if rules is None or (routes and all(getattr(route, "needs_no_access_rule", False) for route in routes)):
        return
    path = path_of([*ctx.path_prefix.split("/")[1:], *segments])
    if any(
        (rule.method == method and rule.service in ctx.api.service_types)
        and (matches(rule.path, path) or matches(rule.path, ctx.mount + path))
        for rule in rules
    ):
        return
    if not await is_sent_by_service(ctx.services, ctx.headers):
        ctx.audit["reason"] = "access rules"
        raise Unauthorized("The access rules of the application credential do not allow this request.")


def path_of(segments: Iterable[str]) -> str:
    """The path of decoded segments, as the router splits it. A slash inside a segment stays encoded."""
    return "/" + "/".join(segment.replace("/", "%2F") for segment in segments)


def matches(pattern: str, path: str) -> bool:
    """Whether the path matches the pattern, in time that is linear in the length of the path.

    Each bit of `states` is a token of the pattern. It is set if the rest of the path may match from this token on.
    """
    if len(path) > _MAX_PATH_LENGTH:
        return False
    compiled = _compile(pattern)
    states = compiled.skip(1)
    for character in path:
        is_slash = character == "/"
        moving = states & (compiled.literals.get(character, 0) | (0 if is_slash else compiled.any_character))
        staying = states & (compiled.everything | (0 if is_slash else compiled.in_segment))
        states = compiled.skip(moving << 1 | staying)
        if not states:
            return False
    return bool(states & compiled.end)


class _Pattern(NamedTuple):
    """The tokens of a pattern by their kind, as sets of bits.

    Tokens match a given character (`literals`), any one character but a slash (`any_character`), any text without a
    slash (`in_segment`) or any text (`everything`). `end` is the bit after the last token.
    """

    literals: dict[str, int]
    any_character: int
    in_segment: int
    everything: int
    end: int

    def skip(self, states: int) -> int:
        """The states, with those after tokens that may match nothing."""
        repeated = self.in_segment | self.everything
        while (more := states | (states & repeated) << 1) != states:
            states = more
        return states


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> _Pattern:
    literals: dict[str, int] = {}
    any_character = in_segment = everything = 0
    bit = 1
    for token in _TOKEN.findall(pattern):
        if token.startswith("**"):
            everything |= bit
        elif token == "*":
            in_segment |= bit
        elif len(token) > 1:
            # A name matches at least one character.
            any_character |= bit
            bit <<= 1
            in_segment |= bit
        else:
            literals[token] = literals.get(token, 0) | bit
        bit <<= 1
    return _Pattern(literals, any_character, in_segment, everything, bit)
