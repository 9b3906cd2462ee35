"""Proxy for volumes and snapshots (before 2.36), and assisted volume snapshots."""
