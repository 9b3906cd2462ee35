"""Flavors: the sizes a server can have."""
