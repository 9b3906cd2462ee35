"""Quotas: how much a project may have, counted when it asks for more."""
