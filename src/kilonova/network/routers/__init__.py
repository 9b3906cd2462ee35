"""Routers, their gateways and interfaces."""
