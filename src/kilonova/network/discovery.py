"""Routes of API discovery: version documents, extensions and network agents."""

from __future__ import annotations

from kilonova.http import Context, Response
from kilonova.http.errors import NotFound
from kilonova.network.api import api

UPDATED = "2026-01-01T00:00:00-00:00"

EXTENSIONS = {
    "agent": ("agent", "The agent management extension."),
    "allowed-address-pairs": ("Allowed Address Pairs", "Provides allowed address pairs"),
    "auto-allocated-topology": ("Auto Allocated Topology Services", "Auto Allocated Topology Services."),
    "availability_zone": ("Availability Zone", "The availability zone extension."),
    "binding": ("Port Binding", "Expose port bindings of a virtual port to external application"),
    "binding-extended": ("Port Bindings Extended", "Expose port bindings of a virtual port to external application"),
    "external-net": ("Neutron external network", "Adds external network attribute to network resource."),
    "ext-gw-mode": ("Neutron L3 Configurable external gateway mode", "Extension of the router abstraction for SNAT"),
    "extra_dhcp_opt": ("Neutron Extra DHCP options", "Extra options configuration for DHCP on ports."),
    "extraroute": ("Neutron Extra Route", "Extra routes configuration for L3 router"),
    "extraroute-atomic": ("Atomically add/remove extra routes", "Edit extra routes of a router on server side."),
    "filter-validation": ("Filter parameters validation", "Provides validation on filter parameters."),
    "fip-port-details": ("Floating IP Port Details Extension", "Add port_details attribute to Floating IP resource"),
    "net-mtu": ("Network MTU", "Provides MTU attribute for a network resource."),
    "net-mtu-writable": ("Network MTU (writable)", "Provides a writable MTU attribute for a network resource."),
    "network_availability_zone": ("Network Availability Zone", "Availability zone support for network."),
    "network-ip-availability": (
        "Network IP Availability",
        "Provides IP availability data for each network and subnet.",
    ),
    "pagination": ("Pagination support", "Extension that indicates that pagination is enabled."),
    "port-security": ("Port Security", "Provides port security"),
    "project-id": ("project_id field enabled", "Extension that indicates that project_id field is enabled."),
    "provider": ("Provider Network", "Expose mapping of virtual networks to physical networks"),
    "quota-check-limit": ("Quota engine limit check", "Refuse quotas below the usage on request"),
    "quotas": ("Quota management support", "Expose functions for quotas management per tenant"),
    "quota_details": ("Quota details management support", "Expose functions for quotas usage statistics per project"),
    "revisions": ("Resource revision numbers", "This extension will display the revision number of neutron resources."),
    "revision-if-match": (
        "If-Match constraints based on revision_number",
        "Extension indicating that If-Match based on revision_number is supported.",
    ),
    "router": ("Neutron L3 Router", "Router abstraction for basic L3 forwarding between L2 Neutron networks."),
    "router_availability_zone": ("Router Availability Zone", "Availability zone support for router."),
    "security-group": ("security-group", "The security groups extension."),
    "service-type": (
        "Neutron Service Type Management",
        "API for retrieving service providers for Neutron advanced services",
    ),
    "sorting": ("Sorting support", "Extension that indicates that sorting is enabled."),
    "standard-attr-description": ("standard-attr-description", "Extension to add descriptions to standard attributes"),
    "standard-attr-tag": ("Tag support for resources with standard attribute", "Enables to set tag on resources."),
    "standard-attr-timestamp": ("Resource timestamps", "Adds created_at and updated_at fields to all resources."),
    "trunk": ("Trunk Extension", "Provides support for trunk ports"),
    "trunk-details": ("Trunk port details", "Expose trunk port details"),
    "stateful-security-group": ("Stateful security group", "Indicates if the security group is stateful or not"),
    "tag-creation": ("Tag creation extension", "Allow to create multiple tags at once"),
}


def _version(ctx: Context) -> dict[str, object]:
    link = {"rel": "self", "href": f"{ctx.base_url()}/v2.0/"}
    return {"id": "v2.0", "status": "CURRENT", "links": [link]}


@api.document("GET", "/")
async def versions(ctx: Context) -> Response:
    """List the versions of the API."""
    return Response({"versions": [_version(ctx)]})


_RESOURCES = (
    "networks",
    "subnets",
    "ports",
    "security-groups",
    "security-group-rules",
    "routers",
    "floatingips",
    "trunks",
    "quotas",
    "extensions",
    "agents",
    "availability_zones",
    "auto-allocated-topology",
    "network-ip-availabilities",
)


@api.document("GET", "/v2.0")
async def resources(ctx: Context) -> Response:
    """List the collections of version 2.0."""
    listed = [
        {
            "name": name.rstrip("s").replace("-", "_").replace("availabilitie", "availability"),
            "collection": name.replace("-", "_"),
            "links": [{"rel": "self", "href": f"{ctx.base_url()}/v2.0/{name}"}],
        }
        for name in _RESOURCES
    ]
    return Response({"resources": listed})


def _extension(alias: str) -> dict[str, object]:
    name, description = EXTENSIONS[alias]
    return {"alias": alias, "name": name, "description": description, "updated": UPDATED, "links": []}


@api.route("GET", "/v2.0/extensions", authenticated=True)
async def index_extensions(ctx: Context) -> Response:
    """List the extensions."""
    return Response({"extensions": [_extension(alias) for alias in EXTENSIONS]})


@api.route("GET", "/v2.0/extensions/{alias}", authenticated=True)
async def show_extension(ctx: Context, alias: str) -> Response:
    """Show an extension."""
    if alias not in EXTENSIONS:
        raise NotFound(f"Extension with alias {alias[:80]} does not exist", code="ExtensionNotFound")
    return Response({"extension": _extension(alias)})


@api.route("GET", "/v2.0/agents", authenticated=True)
async def index_agents(ctx: Context) -> Response:
    """List the network agents: the built-in service has none. The rule `get_agent` would hide agents, not refuse."""
    return Response({"agents": []})
