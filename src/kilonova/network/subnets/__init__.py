"""Subnets: ranges of addresses of a network."""
