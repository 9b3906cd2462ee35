"""Hosts: the agent protocol, its transports, the drivers, and the control plane's record of each host."""
