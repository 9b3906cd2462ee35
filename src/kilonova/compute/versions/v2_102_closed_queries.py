"""Flavors are found by name; `rxtx_factor` and `disabled` leave them; unknown query keys are refused everywhere."""

from kilonova.compute.flavors.schemas import OLD_SORT_KEY, RXTX_FACTOR
from kilonova.http import col
from kilonova.http.versions import Microversion, query, request, view

CLOSED = (
    "GET /extensions",
    "GET /extensions/{alias}",
    "POST /flavors",
    "GET /flavors/{flavor_id}",
    "PUT /flavors/{flavor_id}",
    "DELETE /flavors/{flavor_id}",
    "GET /flavors/{flavor_id}/os-extra_specs",
    "POST /flavors/{flavor_id}/os-extra_specs",
    "GET /flavors/{flavor_id}/os-extra_specs/{key}",
    "PUT /flavors/{flavor_id}/os-extra_specs/{key}",
    "DELETE /flavors/{flavor_id}/os-extra_specs/{key}",
    "GET /flavors/{flavor_id}/os-flavor-access",
    "GET /os-aggregates",
    "POST /os-aggregates",
    "GET /os-aggregates/{aggregate_id}",
    "PUT /os-aggregates/{aggregate_id}",
    "DELETE /os-aggregates/{aggregate_id}",
    "POST /os-aggregates/{aggregate_id}/action#add_host",
    "POST /os-aggregates/{aggregate_id}/action#remove_host",
    "POST /os-aggregates/{aggregate_id}/action#set_metadata",
    "POST /os-aggregates/{aggregate_id}/images",
    "GET /os-availability-zone",
    "GET /os-availability-zone/detail",
    "POST /os-keypairs",
    "GET /os-quota-class-sets/{name}",
    "PUT /os-quota-class-sets/{name}",
    "GET /os-quota-sets/{project_id}/defaults",
    "POST /os-server-external-events",
    "POST /os-server-groups",
    "GET /os-server-groups/{group_id}",
    "DELETE /os-server-groups/{group_id}",
    "PUT /os-services/{service_id}",
    "DELETE /os-services/{service_id}",
    "GET /servers/{server_id}",
    "GET /servers/{server_id}/migrations",
    "GET /servers/{server_id}/migrations/{migration_id}",
    "GET /servers/{server_id}/os-instance-actions/{request_id}",
    "GET /versions/{version_id}",
)

version = Microversion(
    "2.102",
    __doc__,
    [
        query("GET /flavors").gains("name"),
        query("GET /flavors/detail").gains("name"),
        query("GET /flavors").changes("sort_key", before=OLD_SORT_KEY),
        query("GET /flavors/detail").changes("sort_key", before=OLD_SORT_KEY),
        request("POST /flavors").loses("flavor.rxtx_factor", schema=RXTX_FACTOR),
        view("flavor").loses("rxtx_factor", value=col("rxtx_factor").value, schema={"type": "number"}),
        view("flavor").loses("OS-FLV-DISABLED:disabled", value=col("disabled").value, schema={"type": "boolean"}),
        *(query(target).closes() for target in CLOSED),
    ],
)
