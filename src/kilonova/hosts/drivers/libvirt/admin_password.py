"""Sets a user's password through the QEMU guest agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.hosts.drivers.base import MissingGuestAgent, NotRunning
from kilonova.hosts.drivers.libvirt.connection import LibvirtError
from kilonova.hosts.messages import Guest

if TYPE_CHECKING:
    import libvirt

    from kilonova.hosts.drivers.libvirt.hypervisor import Hypervisor

# A hanging guest agent must not block other commands for the guest.
_AGENT_TIMEOUT_SECONDS = 20


async def set_password(hv: Hypervisor, guest_id: str, user: str, password: str) -> None:
    guest = hv.spec(guest_id)
    if await hv.power(guest_id) != "running":
        raise NotRunning(guest_id)
    domain = await hv.domain(guest_id)
    try:
        await hv.connection.run(_set, domain, user or admin_user(guest), password)
    except LibvirtError as error:
        if _lacks_agent(error):
            raise MissingGuestAgent(
                f"the guest agent of {guest_id} could not set the password: {error.message}"
            ) from None
        raise


def admin_user(guest: Guest) -> str:
    """The user whose password is set if the request names none."""
    default = "Administrator" if guest.properties.get("os_type", "").lower() == "windows" else "root"
    return guest.properties.get("os_admin_user") or default


def _set(domain: libvirt.virDomain, user: str, password: str) -> None:
    import libvirt

    try:
        domain.agentSetResponseTimeout(_AGENT_TIMEOUT_SECONDS)
    except libvirt.libvirtError:
        pass  # without an agent the next call fails
    domain.setUserPassword(user, password, 0)


def _lacks_agent(error: LibvirtError) -> bool:
    import libvirt

    return error.code in (
        libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
        libvirt.VIR_ERR_AGENT_UNSYNCED,
        libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED,
        libvirt.VIR_ERR_NO_SUPPORT,
        # Newer releases of libvirt only.
        getattr(libvirt, "VIR_ERR_AGENT_COMMAND_TIMEOUT", None),
    )
