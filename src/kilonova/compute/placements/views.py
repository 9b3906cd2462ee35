"""Views of attempts and of dry-run plans, limited to the hosts that the caller may see."""

from __future__ import annotations

from collections.abc import Callable

from kilonova import clock
from kilonova.compute.api import api
from kilonova.compute.placements.visibility import Visibility
from kilonova.compute.servers.views import NULLABLE, OBJECT, TEXT
from kilonova.http import Context, Field, View
from kilonova.http.views import OMIT, Value
from kilonova.scheduler.attempts import Attempt
from kilonova.scheduler.explain import Diagnosis, Free, Weight

NUMBER = {"type": "integer"}
OBJECTS = {"type": "array", "items": OBJECT}
# Fields of a request that name a host.
_NAMES = ("host", "hypervisor_hostname", "hypervisor_uuid")


def _from_diagnosis(show: Callable[[Diagnosis, Visibility], object]) -> Value:
    """A field's value from the diagnosis. Views render pairs: an attempt or plan, and the caller's visibility."""
    return lambda item, ctx: show(item[0].diagnosis, item[1])


def request_summary(diagnosis: Diagnosis, visibility: Visibility) -> dict[str, object]:
    """The request, without host names unless the caller sees all hosts: an administrator may have named the host."""
    return {key: value for key, value in diagnosis.asked.items() if visibility.all_hosts or key not in _NAMES}


def filters(diagnosis: Diagnosis, visibility: Visibility) -> list[dict[str, object]]:
    return [
        {
            "filter": result.filter,
            "rejected": result.rejected,
            "left": result.left,
            "reasons": [{"text": cause.text, "hosts": cause.hosts} for cause in result.causes],
        }
        for result in diagnosis.filters
    ]


def rejections(diagnosis: Diagnosis, visibility: Visibility) -> object:
    """The rejected hosts that the caller may see."""
    if visibility.sees == "reasons":
        return OMIT
    return [
        {
            **names,
            "filter": rejection.filter,
            "reason": rejection.text,
            **visibility.details(rejection),
            "free": free(rejection.free),
        }
        for rejection in diagnosis.rejections
        if (names := visibility.identify(rejection.host, rejection.hypervisor_hostname)) is not None
    ]


def candidates(diagnosis: Diagnosis, visibility: Visibility) -> object:
    """The remaining hosts that the caller may see, best first. Weights compare them to hidden hosts, so they need the
    visibility of all hosts.
    """
    if visibility.sees == "reasons":
        return OMIT
    return [
        {**names, **(_weights(weight) if visibility.all_hosts else {}), "free": free(weight.free)}
        for weight in diagnosis.weights
        if (names := visibility.identify(weight.host, weight.hypervisor_hostname)) is not None
    ]


def _weights(weight: Weight) -> dict[str, object]:
    parts = {name: round(part, 3) for name, part in weight.parts.items()}
    return {"weight": round(weight.total, 3), "weights": parts}


def free(amounts: Free) -> dict[str, dict[str, int]]:
    return {name: {"free": left, "of": limit} for name, (left, limit) in amounts.items()}


def _attempt(name: str) -> Value:
    return lambda item, ctx: getattr(item[0], name)


def _host(item: tuple[Attempt, Visibility], ctx: Context) -> object:
    attempt, visibility = item
    return attempt.host if visibility.all_hosts else OMIT


def _created(item: tuple[Attempt, Visibility], ctx: Context) -> str:
    return clock.iso(item[0].created_at)


def _message(item: tuple[Attempt, Visibility], ctx: Context) -> str:
    return item[0].diagnosis.sentence()


# Fields of both attempts and plans.
DIAGNOSIS = {
    "message": Field(_message, TEXT),
    "hosts": Field(_from_diagnosis(lambda diagnosis, visibility: diagnosis.hosts), NUMBER),
    "left": Field(_from_diagnosis(lambda diagnosis, visibility: diagnosis.left), NUMBER),
    "asked": Field(_from_diagnosis(request_summary), OBJECT),
    "filters": Field(_from_diagnosis(filters), OBJECTS),
    "rejections": Field(_from_diagnosis(rejections), OBJECTS, optional=True),
    "candidates": Field(_from_diagnosis(candidates), OBJECTS, optional=True),
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
