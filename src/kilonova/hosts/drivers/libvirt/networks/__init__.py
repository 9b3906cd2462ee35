"""Networks for guests on the host: bridges, VXLAN, DHCP, metadata, firewall, routing, NAT and floating IPs."""
