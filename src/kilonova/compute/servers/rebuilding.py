"""Rebuilding: a new disk from an image for a server that stays where it is, and what may be changed along with it."""

from __future__ import annotations

from typing import Any

import orjson

from kilonova.compute import dry_run
from kilonova.compute.api import api
from kilonova.compute.operations.rebuild import Rebuild
from kilonova.compute.schemas import (
    BOOLEAN,
    DESCRIPTION,
    METADATA,
    NAME,
    STRING,
    Schema,
    address,
    closed,
    is_true,
)
from kilonova.compute.servers import acting, create, model
from kilonova.compute.servers.placing import Destination, request_for
from kilonova.compute.servers.schemas import (
    ACCESS_V4,
    ACCESS_V6,
    DISK_CONFIG,
    HOSTNAME,
    IMAGE_REF,
    USER_DATA,
)
from kilonova.http import Answer, Context
from kilonova.http.errors import BadRequest
from kilonova.scheduler.specs import needs
from kilonova.store import Row

RULE = "os_compute_api:servers:rebuild"
TRUSTED_CERTS = RULE + ":trusted_certs"

REBUILD: Schema = closed(
    {
        "imageRef": IMAGE_REF,
        "adminPass": STRING,
        "name": NAME,
        "description": DESCRIPTION,
        "hostname": HOSTNAME,
        "metadata": METADATA,
        "key_name": {**NAME, "type": ["string", "null"]},
        "user_data": USER_DATA,
        "accessIPv4": ACCESS_V4,
        "accessIPv6": ACCESS_V6,
        "OS-DCF:diskConfig": DISK_CONFIG,
        "preserve_ephemeral": BOOLEAN,
        "trusted_image_certificates": {
            "type": ["array", "null"],
            "minItems": 1,
            "maxItems": 50,
            "uniqueItems": True,
            "items": {"type": "string", "minLength": 1},
        },
    },
    ["imageRef"],
)
# What is written as it is said.
_PLAIN = {
    "name": "name",
    "description": "description",
    "hostname": "hostname",
    "user_data": "user_data",
    "OS-DCF:diskConfig": "disk_config",
}


@api.action(
    "rebuild",
    body=REBUILD,
    checks=[RULE, TRUSTED_CERTS],
    status=202,
    dry_run=True,
    shows=("server", "server rebuild", False),
)
async def rebuild(ctx: Context, server_id: str) -> Answer:
    """Build a server again from an image, on the host it has."""
    asked = ctx.body["rebuild"]
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
    _check_offered(ctx, row, asked)
    columns = await _columns(ctx, row, asked)
    if dry_run.asked(ctx):
        return await dry_run.answer(ctx, model.target(row), [])
    async with ctx.db.transaction() as tx:
        row = await acting.ready(ctx, tx, server_id, rule=RULE, transition="rebuild")
        await acting.start(ctx, tx, row, Rebuild, {"columns": columns})
    row |= {**columns, "admin_pass": asked.get("adminPass") or create.new_password()}
    await model.dress(ctx, [row], "server rebuild")
    return Answer({"server": ctx.render("server rebuild", row)}, headers={"Location": ctx.url(f"/servers/{server_id}")})


def _check_offered(ctx: Context, row: Row, asked: dict[str, Any]) -> None:
    if is_true(asked.get("preserve_ephemeral", False)):
        raise BadRequest("preserve_ephemeral: hosts here make every disk of a rebuilt server anew.")
    if asked.get("trusted_image_certificates"):
        ctx.authorize(TRUSTED_CERTS, model.target(row))
        raise BadRequest("trusted_image_certificates: images are not validated by certificates here.")


async def _columns(ctx: Context, row: Row, asked: dict[str, Any]) -> dict[str, Any]:
    """What the row shall say afterwards: the image, and what else was asked for. Refuses what cannot be."""
    flavor = {**orjson.loads(row["flavor"]), "flavor_id": row["flavor_id"]}
    image = await create.fitting_image(ctx, asked["imageRef"].rstrip("/").rsplit("/", 1)[-1], flavor)
    create.check_needs(flavor, image)
    columns: dict[str, Any] = {
        "image_id": image["id"],
        "image_properties": orjson.dumps(create.image_properties(image)).decode(),
    }
    columns |= {_PLAIN[key]: value for key, value in asked.items() if key in _PLAIN}
    await _check_host(ctx, row, columns)
    if "metadata" in asked:
        await create.check_metadata(ctx, asked["metadata"])
        columns["metadata"] = orjson.dumps(asked["metadata"]).decode()
    if "key_name" in asked:
        # Keys belong to users, servers to projects: it is the key of whoever asks.
        key = await create.key_named(ctx, asked["key_name"])
        columns |= {"key_name": key and key["name"], "public_key": key and key["public_key"]}
    for name, column in (("accessIPv4", "access_ip_v4"), ("accessIPv6", "access_ip_v6")):
        if name in asked:
            columns[column] = address(asked[name])
    return columns


async def _check_host(ctx: Context, row: Row, columns: dict[str, Any]) -> None:
    """Another image may ask for what the server's host is not, or for more of it than the server holds."""
    if all(row[name] == columns[name] for name in ("image_id", "image_properties")):
        return
    here = Destination(host=row["host"], hypervisor_hostname=row["hypervisor_hostname"])
    request = await request_for(ctx.db, {**row, **columns}, destination=here)
    held = needs(orjson.loads(row["flavor"]), orjson.loads(row["image_properties"]))
    if (request.resources, request.groups) != (held["resources"], held["groups"]):
        raise BadRequest("The image asks for other resources of a host than the server has there.")
    if objections := await ctx.services.scheduler.objections(request):
        raise BadRequest(f"The server's host cannot have a server of this image: {', '.join(objections)}")
