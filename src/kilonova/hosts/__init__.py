"""Hosts: the agent protocol, its transports, the drivers, and the registry of hosts."""
