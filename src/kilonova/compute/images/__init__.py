"""Proxy for images (before 2.36) and their metadata (before 2.39)."""
