"""Aggregates: groups of hosts with metadata."""
