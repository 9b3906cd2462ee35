"""Routes of usage audits."""

from __future__ import annotations

from datetime import UTC, datetime

from kilonova.compute.api import api
from kilonova.compute.usage_audits import model
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest

RULE = "os_compute_api:os-instance-usage-audit-log:"
PATH = "/os-instance_usage_audit_log"


@api.route("GET", PATH, policy=RULE + "list")
async def index(ctx: Context) -> Answer:
    """Show the usage audit of the last whole month."""
    return Answer({"instance_usage_audit_logs": await model.audit(ctx.db, model.last_before(ctx.now), ctx.now)})


@api.route("GET", PATH + "/{before}", policy=RULE + "show")
async def show(ctx: Context, before: str) -> Answer:
    """Show the usage audit of the last whole month before a time."""
    return Answer({"instance_usage_audit_log": await model.audit(ctx.db, _period(before), ctx.now)})


def _period(text: str) -> model.Period:
    form = "%Y-%m-%d %H:%M:%S.%f" if "." in text else "%Y-%m-%d %H:%M:%S"
    try:
        return model.last_before(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        raise BadRequest(f"Invalid timestamp for date {text[:80]}") from None
