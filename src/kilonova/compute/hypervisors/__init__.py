"""Hypervisors: the hosts of servers, and their capacity."""
