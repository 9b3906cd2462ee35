"""Endpoint groups, and routes that add them and single endpoints to projects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import orjson

from kilonova.http import Context, Response
from kilonova.identity.api import Json, api, list_links
from kilonova.identity.endpoint_filters import added_endpoints, matches
from kilonova.identity.endpoints import ENDPOINTS
from kilonova.identity.own_services import INTERFACES
from kilonova.identity.projects import PROJECTS
from kilonova.identity.resources import Resource, conflicts, get, not_found, write_transaction
from kilonova.identity.schemas import NAME, REGION_ID_OR_NULL, TEXT_OR_NULL
from kilonova.store import Reader, Row

_PATH = "OS-EP-FILTER"


class EndpointGroups(Resource):
    noun = "endpoint_group"
    path = f"{_PATH}/endpoint_groups"
    properties: ClassVar[Json] = {
        "name": NAME,
        "description": TEXT_OR_NULL,
        "filters": {
            "type": "object",
            "properties": {
                "interface": {"enum": list(INTERFACES)},
                "service_id": {"type": "string"},
                "region_id": REGION_ID_OR_NULL,
            },
            "additionalProperties": False,
        },
    }
    required = ("name", "filters")
    known = ("name", "description", "filters")
    columns = ("name", "description")
    defaults: ClassVar[Json] = {"description": None}
    flags = ()

    async def values(self, ctx: Context, body: Json) -> Json:
        values = await super().values(ctx, body)
        return {**values, "filters": orjson.dumps(body["filters"]).decode()} if "filters" in body else values

    def attributes(self, row: Row) -> Json:
        return {"description": row["description"], "filters": orjson.loads(row["filters"])}


ENDPOINT_GROUPS = EndpointGroups()


def _list(ctx: Context, kind: Resource, rows: Sequence[Row], path: str) -> Response:
    shown = [kind.view(ctx, row) for row in rows]
    return Response({kind.plural: shown, "links": list_links(ctx, f"{_PATH}/{path}")})


# Endpoints and endpoint groups of projects


class _ProjectRoutes:
    """Routes that add endpoints, or endpoint groups, to projects, and list the projects."""

    def __init__(self, kind: Resource, table: str, rules: Json) -> None:
        self.kind, self.table, self.column = kind, table, f"{kind.noun}_id"
        self.condition = f"{self.column} = $1 AND project_id = $2"
        item, project = f"{{{self.column}}}", "{project_id}"
        groups = kind is ENDPOINT_GROUPS
        one = f"{kind.plural}/{item}/projects/{project}" if groups else f"projects/{project}/{kind.plural}/{item}"
        api.route("PUT", f"/v3/{_PATH}/{one}", policy=rules["add"], status=204)(self.add)
        for method in ("GET", "HEAD"):
            status = 200 if groups and method == "GET" else 204
            api.route(method, f"/v3/{_PATH}/{one}", policy=rules["check"], status=status)(self.check)
        api.route("DELETE", f"/v3/{_PATH}/{one}", policy=rules["remove"], status=204)(self.remove)
        api.route("GET", f"/v3/{_PATH}/{kind.plural}/{item}/projects", policy=rules["projects"])(self.list_projects)

    async def _check(self, ctx: Context, db: Reader, params: dict[str, str]) -> tuple[str, str]:
        """The ids of the object and the project, which both exist."""
        item_id, project_id = params[self.column], params["project_id"]
        await self.kind.get(ctx, db, item_id)
        await get(db, "projects", project_id)
        return item_id, project_id

    async def add(self, ctx: Context, **params: str) -> None:
        """Add an endpoint or endpoint group to a project, whose catalogue then has only the added endpoints."""
        with conflicts(self.kind.noun, params[self.column]):
            async with write_transaction(ctx) as tx:
                ids = await self._check(ctx, tx, params)
                # Endpoints have no foreign key.
                await self.kind.lock(ctx, tx, ids[0])
                sql = f"INSERT INTO {self.table} ({self.column}, project_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
                await tx.execute(sql, *ids)

    async def check(self, ctx: Context, **params: str) -> Response:
        """Check whether an endpoint or endpoint group is added to a project; GET shows the endpoint group."""
        ids = await self._check(ctx, ctx.db, params)
        if await ctx.db.fetch_value(f"SELECT 1 FROM {self.table} WHERE {self.condition}", *ids) is None:
            raise self._not_added(*ids)
        if self.kind is ENDPOINT_GROUPS and ctx.route.method == "GET":
            return Response({self.kind.noun: self.kind.view(ctx, await self.kind.get(ctx, ctx.db, ids[0]))})
        return Response()

    async def remove(self, ctx: Context, **params: str) -> None:
        """Remove an endpoint or endpoint group from a project."""
        async with write_transaction(ctx) as tx:
            ids = await self._check(ctx, tx, params)
            if not await tx.execute(f"DELETE FROM {self.table} WHERE {self.condition}", *ids):
                raise self._not_added(*ids)

    def _not_added(self, item_id: str, project_id: str) -> Exception:
        return not_found(self.kind.noun, f"{item_id} in project {project_id}")

    async def list_projects(self, ctx: Context, **params: str) -> Response:
        """List the projects that an endpoint or endpoint group is added to."""
        item_id = params[self.column]
        await self.kind.get(ctx, ctx.db, item_id)
        added = f"SELECT project_id FROM {self.table} WHERE {self.column} = $1"
        rows = await ctx.db.fetch(f"SELECT * FROM projects WHERE id IN ({added}) ORDER BY name, id", item_id)
        return _list(ctx, PROJECTS, rows, f"{self.kind.plural}/{item_id}/projects")


_ProjectRoutes(
    ENDPOINTS,
    "endpoint_projects",
    {
        "add": "identity:add_endpoint_to_project",
        "check": "identity:check_endpoint_in_project",
        "remove": "identity:remove_endpoint_from_project",
        "projects": "identity:list_projects_for_endpoint",
    },
)
_ProjectRoutes(
    ENDPOINT_GROUPS,
    "endpoint_group_projects",
    {
        "add": "identity:add_endpoint_group_to_project",
        "check": "identity:get_endpoint_group_in_project",
        "remove": "identity:remove_endpoint_group_from_project",
        "projects": "identity:list_projects_associated_with_endpoint_group",
    },
)


@api.route("HEAD", f"/v3/{ENDPOINT_GROUPS.path}/{{endpoint_group_id}}", policy="identity:get_endpoint_group")
async def check_group(ctx: Context, endpoint_group_id: str) -> None:
    """Check whether an endpoint group exists."""
    await ENDPOINT_GROUPS.get(ctx, ctx.db, endpoint_group_id)


@api.route(
    "GET",
    f"/v3/{ENDPOINT_GROUPS.path}/{{endpoint_group_id}}/endpoints",
    policy="identity:list_endpoints_associated_with_endpoint_group",
)
async def list_endpoints(ctx: Context, endpoint_group_id: str) -> Response:
    """List the endpoints that match the filters of a group."""
    filters = orjson.loads((await ENDPOINT_GROUPS.get(ctx, ctx.db, endpoint_group_id))["filters"])
    rows = [row for row in await ENDPOINTS.all_rows(ctx) if matches(filters, row)]
    return _list(ctx, ENDPOINTS, rows, f"endpoint_groups/{endpoint_group_id}/endpoints")


@api.route("GET", f"/v3/{_PATH}/projects/{{project_id}}/endpoints", policy="identity:list_endpoints_for_project")
async def list_endpoints_of_project(ctx: Context, project_id: str) -> Response:
    """List the endpoints that are added to a project, by themselves or by groups."""
    await get(ctx.db, "projects", project_id)
    is_added = await added_endpoints(ctx.db, project_id)
    rows = [row for row in await ENDPOINTS.all_rows(ctx) if is_added is not None and is_added(row)]
    return _list(ctx, ENDPOINTS, rows, f"projects/{project_id}/endpoints")


@api.route(
    "GET", f"/v3/{_PATH}/projects/{{project_id}}/endpoint_groups", policy="identity:list_endpoint_groups_for_project"
)
async def list_groups_of_project(ctx: Context, project_id: str) -> Response:
    """List the endpoint groups that are added to a project."""
    await get(ctx.db, "projects", project_id)
    added = "SELECT endpoint_group_id FROM endpoint_group_projects WHERE project_id = $1"
    rows = await ctx.db.fetch(f"SELECT * FROM endpoint_groups WHERE id IN ({added}) ORDER BY name, id", project_id)
    return _list(ctx, ENDPOINT_GROUPS, rows, f"projects/{project_id}/endpoint_groups")
