"""Bare metal nodes, which a service of their own would keep: there is none, and compute says so."""
