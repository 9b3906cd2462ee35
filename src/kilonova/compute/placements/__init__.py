"""Placement explanations: attempts to find a host for a server, dry-run plans, and fit."""
