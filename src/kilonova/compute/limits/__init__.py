"""Limits: what the caller's project may have, and has."""
