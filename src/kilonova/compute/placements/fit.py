"""Fit: how many more servers of a flavor the hosts have capacity for, from the scheduler's snapshot of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.compute.api import api
from kilonova.compute.flavors import model as flavors
from kilonova.compute.placements.views import NUMBER, OBJECTS, filters, free
from kilonova.compute.placements.visibility import Visibility
from kilonova.compute.servers import image_checks
from kilonova.compute.servers.views import OBJECT, TEXT
from kilonova.compute.zones import model as zones
from kilonova.http import Context, Field, Response, View, attribute
from kilonova.http.errors import BadRequest
from kilonova.http.pagination import LIMIT, page_limit
from kilonova.scheduler import Request
from kilonova.scheduler.requirements import host_requirements

if TYPE_CHECKING:
    from kilonova.scheduler.fit import Fit

QUERY = {"flavor": {"type": "string"}, "zone": {"type": "string"}, "image": {"type": "string"}, "limit": LIMIT}


@api.route("GET", "/kilonova-fit", policy="kilonova:fit", query=QUERY, shows=("fit", "fit", False))
async def show(ctx: Context) -> Response:
    """Show how many more servers of a flavor would fit, where, and what runs out first."""
    request = await _request(ctx)
    planner, hosts = await ctx.services.scheduler.current_hosts()
    from kilonova.scheduler.fit import fit

    return Response({"fit": ctx.render("fit", fit(planner, hosts, request, page_limit(ctx)))})


async def _request(ctx: Context) -> Request:
    flavor = await _flavor(ctx, ctx.query_one("flavor"))
    properties = await _image_properties(ctx, ctx.query_one("image"))
    zone = ctx.query_one("zone")
    if zone and zone not in await zones.zone_names(ctx.db, ctx.services.config.scheduler.default_zone):
        raise BadRequest("The requested availability zone is not available")
    try:
        resources = host_requirements(flavor, properties)
    except ValueError as error:
        raise BadRequest(f"Flavor {flavor.flavor_id} cannot be placed: {error}") from None
    return Request(**resources, zone=zone or None, image_id=ctx.query_one("image"))


async def _flavor(ctx: Context, named: str | None) -> flavors.Flavor:
    """The flavor by its id, else by its name."""
    if named is None:
        raise BadRequest("Invalid input for query parameters flavor: it is required.")
    by_name = await ctx.db.fetch_value("SELECT flavor_id FROM flavors WHERE name = $1", named)
    for flavor_id in (named, by_name):
        if flavor_id is not None and (found := await flavors.get(ctx.db, flavor_id, ctx.token)) is not None:
            return found
    raise BadRequest(f"Flavor {named} could not be found.")


async def _image_properties(ctx: Context, image_id: str | None) -> dict[str, str]:
    if image_id is None:
        return {}
    image = await ctx.services.image.show(image_id, ctx.auth_token)
    if image is None:
        raise BadRequest(f"Can not find requested image {image_id}.")
    return image_checks.properties(image)


def _hosts(found: Fit, ctx: Context) -> list[dict[str, object]]:
    return [
        {
            "host": host.host,
            "hypervisor_hostname": host.hypervisor_hostname,
            "zone": host.zone,
            "servers": host.servers,
            "runs_out": host.runs_out,
            "shared": host.shared,
            "free": free(host.free),
        }
        for host in found.best
    ]


api.view(
    View(
        "fit",
        {
            "servers": attribute("servers", NUMBER),
            "zones": attribute("zones", OBJECT),
            "runs_out": attribute("runs_out", OBJECT),
            "hosts_with_room": attribute("hosts", NUMBER),
            "hosts": Field(_hosts, OBJECTS),
            "message": Field(lambda found, ctx: found.diagnosis.sentence(), TEXT),
            "asked": Field(lambda found, ctx: found.diagnosis.asked, OBJECT),
            "filters": Field(lambda found, ctx: filters(found.diagnosis, Visibility("all hosts")), OBJECTS),
        },
    )
)
