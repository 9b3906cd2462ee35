"""Ports: where a device meets a network."""
