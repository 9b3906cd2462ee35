"""Where the limits of a project come from: the configuration and the database, or Keystone's unified limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kilonova.compute.quotas import resource_classes
from kilonova.compute.quotas.unified_limits import ProjectLimits, UnifiedLimits
from kilonova.unified_limits import LIMIT_NAMES, SERVERS

if TYPE_CHECKING:
    from kilonova.config import Config
    from kilonova.http import Context
    from kilonova.scheduler.requirements import Flavor
    from kilonova.services import Services

# Limited by the network service. Old microversions can set and show these limits, which have no effect.
NETWORK_RESOURCES = ("fixed_ips", "floating_ips", "security_groups", "security_group_rules")


class Source(NamedTuple):
    """What is known of a project's limits before the transaction that checks them."""

    # By name in the API. Rows of the database take precedence, unless limits are unified.
    limits: Mapping[str, int]
    unified: ProjectLimits | None = None

    def needed(self, flavor: Flavor, image_properties: Mapping[str, str], *, root_disk: bool) -> dict[str, int]:
        """The quota that one server uses."""
        if self.unified is None:
            return {"instances": 1, "cores": flavor.vcpus, "ram": flavor.ram}
        return {SERVERS: 1, **resource_classes.needed(flavor, image_properties, root_disk=root_disk)}

    def more_needed(
        self, old: Flavor, new: Flavor, image_properties: Mapping[str, str], *, root_disk: bool
    ) -> dict[str, int]:
        """How much more quota the server uses with another flavor."""
        before = self.needed(old, image_properties, root_disk=root_disk)
        after = self.needed(new, image_properties, root_disk=root_disk)
        return {resource: amount - before.get(resource, 0) for resource, amount in after.items()}


async def find_source(services: Services, project_id: str | None) -> Source:
    """The source of the project's limits. Call it before a transaction, because it may call Keystone.

    Raises Unavailable.
    """
    config = services.config
    if config.quota.driver == "database":
        return Source(_config_limits(config))
    if services.unified_limits is None:
        services.unified_limits = UnifiedLimits(services.identity, config.quota)
    unified = await services.unified_limits.of(project_id or "")
    return Source({**dict.fromkeys(NETWORK_RESOURCES, -1), **unified.limits_of_api()}, unified)


async def find_source_of_server(ctx: Context, server_id: str) -> Source:
    """The same for the project of a server, which may be that of another user."""
    project_id = ctx.token.project_id
    if ctx.services.config.quota.driver != "database":
        sql = "SELECT project_id FROM servers WHERE id = $1"
        project_id = await ctx.db.fetch_value(sql, server_id) or project_id
    return await find_source(ctx.services, project_id)


def _config_limits(config: Config) -> dict[str, int]:
    found: dict[str, int] = {resource: getattr(config.quota, resource) for resource in LIMIT_NAMES}
    return found | dict.fromkeys(NETWORK_RESOURCES, -1)
