"""Servers: what people come for."""
