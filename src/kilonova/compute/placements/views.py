"""How an attempt, and a plan that was only tried, are shown; what of it depends on what the caller may see of hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.placements.sight import Sight
from kilonova.compute.servers.views import NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View
from kilonova.http.views import OMIT, Value
from kilonova.scheduler.attempts import Attempt
from kilonova.scheduler.explain import Diagnosis, Free, Weight

NUMBER = {"type": "integer"}
OBJECTS = {"type": "array", "items": OBJECT}
# Of what was asked, these name a host.
_NAMES = ("host", "hypervisor_hostname", "hypervisor_uuid")


def _told(show: Callable[[Diagnosis, Sight], Any]) -> Value:
    """Shown is a pair: an attempt or a plan, and the caller's sight."""
    return lambda item, ctx: show(item[0].diagnosis, item[1])


def asked(diagnosis: Diagnosis, sight: Sight) -> dict[str, Any]:
    """A host that somebody else has named is not for everybody."""
    return {key: value for key, value in diagnosis.asked.items() if sight.everything or key not in _NAMES}


def filters(diagnosis: Diagnosis, sight: Sight) -> list[dict[str, Any]]:
    return [
        {
            "filter": result.filter,
            "rejected": result.rejected,
            "left": result.left,
            "reasons": [{"text": cause.text, "hosts": cause.hosts} for cause in result.causes],
        }
        for result in diagnosis.filters
    ]


def rejections(diagnosis: Diagnosis, sight: Sight) -> Any:
    """The hosts that were turned down, as far as the caller sees hosts."""
    if sight.sees == "reasons":
        return OMIT
    return [
        {
            **names,
            "filter": one.filter,
            "reason": one.text,
            **sight.details(one),
            "free": free(one.free),
        }
        for one in diagnosis.rejections
        if (names := sight.shown(one.host, one.hypervisor_hostname)) is not None
    ]


def candidates(diagnosis: Diagnosis, sight: Sight) -> Any:
    """The hosts that were left, best first. What others have, and who of them is better, shows in the weights."""
    if sight.sees == "reasons":
        return OMIT
    return [
        {**names, **(_weights(one) if sight.everything else {}), "free": free(one.free)}
        for one in diagnosis.weights
        if (names := sight.shown(one.host, one.hypervisor_hostname)) is not None
    ]


def _weights(weight: Weight) -> dict[str, Any]:
    parts = {name: round(part, 3) for name, part in weight.parts.items()}
    return {"weight": round(weight.total, 3), "weights": parts}


def free(amounts: Free) -> dict[str, dict[str, int]]:
    return {name: {"free": left, "of": limit} for name, (left, limit) in amounts.items()}


def _attempt(name: str) -> Value:
    return lambda item, ctx: getattr(item[0], name)


def _host(item: tuple[Attempt, Sight], ctx: Context) -> Any:
    attempt, sight = item
    return attempt.host if sight.everything else OMIT


def _created(item: tuple[Attempt, Sight], ctx: Context) -> str:
    return clock.iso(item[0].created_at)


def _message(item: tuple[Attempt, Sight], ctx: Context) -> str:
    return item[0].diagnosis.sentence()


# What attempts and plans have in common.
DIAGNOSIS = {
    "message": Field(_message, TEXT),
    "hosts": Field(_told(lambda diagnosis, sight: diagnosis.hosts), NUMBER),
    "left": Field(_told(lambda diagnosis, sight: diagnosis.left), NUMBER),
    "asked": Field(_told(asked), OBJECT),
    "filters": Field(_told(filters), OBJECTS),
    "rejections": Field(_told(rejections), OBJECTS, optional=True),
    "candidates": Field(_told(candidates), OBJECTS, optional=True),
}

api.view(
    View(
        "attempt",
        {
            "id": Field(_attempt("id"), NUMBER),
            "kind": Field(_attempt("kind"), TEXT),
            "operation_id": Field(_attempt("operation_id"), NULLABLE),
            "created_at": Field(_created, TEXT),
            "placed": Field(lambda item, ctx: item[0].host is not None, {"type": "boolean"}),
            "host": Field(_host, NULLABLE, optional=True),
            "lost": Field(_attempt("lost"), NUMBER),
            **DIAGNOSIS,
        },
    )
)
