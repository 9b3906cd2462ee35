"""API errors with the `type` names of Neutron."""

from __future__ import annotations

from kilonova.http.errors import BadRequest, Conflict, HttpError, NotFound


def invalid(message: str, kind: str = "InvalidInput") -> BadRequest:
    return BadRequest(f"Invalid input for operation: {message}." if kind == "InvalidInput" else message, code=kind)


def conflict(kind: str, message: str) -> Conflict:
    return Conflict(message, code=kind)


def revision_mismatch(if_match: str, revision: int) -> HttpError:
    message = f"Constrained to {if_match[:60]}, but current revision is {revision}"
    return HttpError(message, status=412, code="RevisionNumberConstraintFailed")


def network_not_found(network_id: str) -> NotFound:
    return NotFound(f"Network {network_id} could not be found.", code="NetworkNotFound")


def subnet_not_found(subnet_id: str) -> NotFound:
    return NotFound(f"Subnet {subnet_id} could not be found.", code="SubnetNotFound")


def port_not_found(port_id: str) -> NotFound:
    return NotFound(f"Port {port_id} could not be found.", code="PortNotFound")


def binding_not_found(port_id: str, host: str) -> NotFound:
    return NotFound(f"Binding for port {port_id} for host {host[:255]} could not be found.", code="PortBindingNotFound")


def router_not_found(router_id: str) -> NotFound:
    return NotFound(f"Router {router_id} could not be found", code="RouterNotFound")


def floating_ip_not_found(floating_ip_id: str) -> NotFound:
    return NotFound(f"Floating IP {floating_ip_id} could not be found", code="FloatingIPNotFound")


def group_not_found(group_id: str) -> NotFound:
    return NotFound(f"Security group {group_id} does not exist", code="SecurityGroupNotFound")


def rule_not_found(rule_id: str) -> NotFound:
    return NotFound(f"Security group rule {rule_id} does not exist", code="SecurityGroupRuleNotFound")


def no_more_addresses(network_id: str) -> Conflict:
    return conflict("IpAddressGenerationFailure", f"No more IP addresses available on network {network_id}.")


def address_in_use(ip: str, subnet_id: str) -> Conflict:
    return conflict("IpAddressAlreadyAllocated", f"IP address {ip} already allocated in subnet {subnet_id}")


def over_quota(resource: str) -> Conflict:
    return conflict("OverQuota", f"Quota exceeded for resources: ['{resource}'].")
