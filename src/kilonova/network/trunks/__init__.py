"""Trunks: a port of a guest that carries the traffic of further ports, each with a VLAN id of its own."""
