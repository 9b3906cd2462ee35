"""Network: default rules under the names of the public Networking API."""

from __future__ import annotations

from kilonova.policy.base import ADMIN, MEMBER_OR_ADMIN, READER_OR_ADMIN, SERVICE, SERVICE_OR_ADMIN, Rule, rules
from kilonova.policy.checks import Role, RuleReference, TargetField

SHARED = RuleReference("shared")
EXTERNAL = TargetField("networks:router:external=True")
# For ports in a shared network, the members of the network's project control these attributes.
NETWORK_OWNER = Role("member") & RuleReference("network_owner")
NETWORK_READER = Role("reader") & RuleReference("network_owner")
PORT_OWNER = MEMBER_OR_ADMIN | SERVICE
PORT_DETAIL = ADMIN | SERVICE | NETWORK_OWNER

NETWORKS = rules(
    "",
    ("create_network", MEMBER_OR_ADMIN, "Create a network."),
    ("create_network:shared", ADMIN, "Create a network that every project may use."),
    ("create_network:router:external", ADMIN, "Create an external network."),
    ("create_network:is_default", ADMIN, "Create the default external network."),
    ("create_network:port_security_enabled", MEMBER_OR_ADMIN, "Create a network with port security set."),
    ("create_network:segments", ADMIN, "Create a network of several segments."),
    ("create_network:provider:network_type", ADMIN, "Create a network of a given type."),
    ("create_network:provider:physical_network", ADMIN, "Create a network on a given physical network."),
    ("create_network:provider:segmentation_id", ADMIN, "Create a network with a given segmentation id."),
    ("get_network", READER_OR_ADMIN | SHARED | EXTERNAL | SERVICE, "Show and list networks."),
    ("get_network:segments", ADMIN, "See the segments of a network."),
    ("get_network:provider:network_type", ADMIN, "See the type of a network."),
    ("get_network:provider:physical_network", ADMIN, "See the physical network of a network."),
    ("get_network:provider:segmentation_id", ADMIN, "See the segmentation id of a network."),
    ("update_network", MEMBER_OR_ADMIN, "Change a network."),
    ("update_network:shared", ADMIN, "Change whether every project may use a network."),
    ("update_network:router:external", ADMIN, "Change whether a network is external."),
    ("update_network:is_default", ADMIN, "Change which external network is the default."),
    ("update_network:port_security_enabled", MEMBER_OR_ADMIN, "Change a network's port security."),
    ("update_network:provider:network_type", ADMIN, "Change the type of a network."),
    ("update_network:provider:physical_network", ADMIN, "Change the physical network of a network."),
    ("update_network:provider:segmentation_id", ADMIN, "Change the segmentation id of a network."),
    ("delete_network", MEMBER_OR_ADMIN, "Delete a network."),
    ("create_subnet", MEMBER_OR_ADMIN | NETWORK_OWNER, "Create a subnet."),
    ("get_subnet", READER_OR_ADMIN | SHARED | EXTERNAL | SERVICE, "Show and list subnets."),
    ("update_subnet", MEMBER_OR_ADMIN | NETWORK_OWNER, "Change a subnet."),
    ("delete_subnet", MEMBER_OR_ADMIN | NETWORK_OWNER, "Delete a subnet."),
)

PORTS = rules(
    "",
    ("create_port", PORT_OWNER, "Create a port."),
    ("create_port:device_id", PORT_OWNER, "Create a port of a given device."),
    ("create_port:device_owner", PORT_OWNER, "Create a port with a given owner of the device."),
    ("create_port:mac_address", PORT_DETAIL, "Create a port with a given MAC address."),
    ("create_port:fixed_ips", PORT_OWNER | SHARED, "Create a port with fixed addresses."),
    ("create_port:fixed_ips:ip_address", PORT_DETAIL, "Create a port with a given address."),
    ("create_port:fixed_ips:subnet_id", PORT_OWNER | SHARED, "Create a port with an address of a given subnet."),
    ("create_port:port_security_enabled", PORT_DETAIL, "Create a port with port security set."),
    ("create_port:allowed_address_pairs", ADMIN | NETWORK_OWNER, "Create a port with allowed address pairs."),
    ("create_port:binding:host_id", SERVICE_OR_ADMIN, "Create a port bound to a host."),
    ("create_port:binding:profile", SERVICE_OR_ADMIN, "Create a port with a binding profile."),
    ("create_port:binding:vnic_type", PORT_OWNER, "Create a port with a given type of interface."),
    ("get_port", READER_OR_ADMIN | SERVICE | NETWORK_READER, "Show and list ports."),
    ("get_port:binding:vif_type", SERVICE_OR_ADMIN, "See how a port is plugged."),
    ("get_port:binding:vif_details", SERVICE_OR_ADMIN, "See the details of how a port is plugged."),
    ("get_port:binding:host_id", SERVICE_OR_ADMIN, "See the host a port is bound to."),
    ("get_port:binding:profile", SERVICE_OR_ADMIN, "See the binding profile of a port."),
    ("get_port:resource_request", SERVICE_OR_ADMIN, "See the resources that a port requests."),
    ("update_port", PORT_OWNER, "Change a port."),
    ("update_port:device_id", PORT_OWNER, "Change the device of a port."),
    ("update_port:device_owner", PORT_OWNER, "Change the owner of a port's device."),
    ("update_port:mac_address", SERVICE_OR_ADMIN, "Change a port's MAC address."),
    ("update_port:fixed_ips", PORT_OWNER, "Change a port's fixed addresses."),
    ("update_port:fixed_ips:ip_address", PORT_DETAIL, "Change a port to have a given address."),
    ("update_port:fixed_ips:subnet_id", PORT_OWNER | SHARED, "Change a port to have an address of a given subnet."),
    ("update_port:port_security_enabled", PORT_DETAIL, "Change a port's port security."),
    ("update_port:allowed_address_pairs", ADMIN | NETWORK_OWNER, "Change a port's allowed address pairs."),
    ("update_port:binding:host_id", SERVICE_OR_ADMIN, "Bind a port to a host."),
    ("update_port:binding:profile", SERVICE_OR_ADMIN, "Change the binding profile of a port."),
    ("update_port:binding:vnic_type", PORT_OWNER, "Change a port's type of interface."),
    ("delete_port", PORT_OWNER | NETWORK_OWNER, "Delete a port."),
    ("create_port_binding", SERVICE_OR_ADMIN, "Bind a port to a further host."),
    ("get_port_binding", SERVICE_OR_ADMIN, "Show and list the bindings of a port."),
    ("update_port_binding", SERVICE_OR_ADMIN, "Change a binding of a port."),
    ("activate", SERVICE_OR_ADMIN, "Make a binding of a port the active one."),
    ("delete_port_binding", SERVICE_OR_ADMIN, "Delete a binding of a port."),
)

ROUTERS = rules(
    "",
    ("create_router", MEMBER_OR_ADMIN, "Create a router."),
    ("create_router:external_gateway_info", MEMBER_OR_ADMIN, "Create a router with a gateway."),
    ("create_router:external_gateway_info:network_id", MEMBER_OR_ADMIN, "Name the network of that gateway."),
    ("create_router:external_gateway_info:enable_snat", ADMIN, "Set whether that gateway translates addresses."),
    ("create_router:external_gateway_info:external_fixed_ips", ADMIN, "Set which addresses that gateway has."),
    ("create_router:distributed", ADMIN, "Create a distributed router."),
    ("create_router:ha", ADMIN, "Create a highly available router."),
    ("get_router", READER_OR_ADMIN, "Show and list routers."),
    ("get_router:distributed", ADMIN, "See whether a router is distributed."),
    ("get_router:ha", ADMIN, "See whether a router is highly available."),
    ("update_router", MEMBER_OR_ADMIN, "Change a router."),
    ("update_router:external_gateway_info", MEMBER_OR_ADMIN, "Change a router's gateway."),
    ("update_router:external_gateway_info:network_id", MEMBER_OR_ADMIN, "Change the network of that gateway."),
    ("update_router:external_gateway_info:enable_snat", ADMIN, "Change whether that gateway translates addresses."),
    ("update_router:external_gateway_info:external_fixed_ips", ADMIN, "Change which addresses that gateway has."),
    ("delete_router", MEMBER_OR_ADMIN, "Delete a router."),
    ("add_router_interface", MEMBER_OR_ADMIN, "Connect a router to a subnet."),
    ("remove_router_interface", MEMBER_OR_ADMIN, "Disconnect a router from a subnet."),
    ("add_extraroutes", MEMBER_OR_ADMIN, "Add routes to a router."),
    ("remove_extraroutes", MEMBER_OR_ADMIN, "Remove routes from a router."),
    ("create_floatingip", MEMBER_OR_ADMIN, "Create a floating address."),
    ("create_floatingip:floating_ip_address", ADMIN, "Create a given floating address."),
    ("get_floatingip", READER_OR_ADMIN, "Show and list floating addresses."),
    ("update_floatingip", MEMBER_OR_ADMIN, "Associate or disassociate a floating address."),
    ("delete_floatingip", MEMBER_OR_ADMIN, "Delete a floating address."),
)

OTHERS = rules(
    "",
    ("create_security_group", MEMBER_OR_ADMIN, "Create a security group."),
    ("get_security_group", READER_OR_ADMIN | SERVICE, "Show and list security groups."),
    ("update_security_group", MEMBER_OR_ADMIN, "Change a security group."),
    ("delete_security_group", MEMBER_OR_ADMIN, "Delete a security group."),
    ("create_security_group_rule", MEMBER_OR_ADMIN, "Create a security group rule."),
    ("get_security_group_rule", READER_OR_ADMIN | SERVICE, "Show and list security group rules."),
    ("delete_security_group_rule", MEMBER_OR_ADMIN, "Delete a security group rule."),
    ("get_quota", READER_OR_ADMIN, "Show a project's network quota."),
    ("update_quota", ADMIN, "Change a project's network quota."),
    ("delete_quota", ADMIN, "Put a project's network quota back to the defaults."),
    ("get_agent", ADMIN, "Show and list network agents."),
    ("get_availability_zone", READER_OR_ADMIN, "List the network service's availability zones."),
    ("get_service_provider", READER_OR_ADMIN, "List the providers of network services."),
    ("get_auto_allocated_topology", READER_OR_ADMIN, "Show or make a project's automatic network."),
    ("delete_auto_allocated_topology", MEMBER_OR_ADMIN, "Delete a project's automatic network."),
    ("get_network_ip_availability", ADMIN, "See how many addresses of each network are taken."),
    ("get_tags", READER_OR_ADMIN | SHARED, "List the tags of a resource."),
    ("update_tags", MEMBER_OR_ADMIN, "Replace or add tags of a resource."),
    ("delete_tags", MEMBER_OR_ADMIN, "Delete tags of a resource."),
)

RULES: tuple[Rule, ...] = (*NETWORKS, *PORTS, *ROUTERS, *OTHERS)
