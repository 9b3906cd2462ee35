"""Snapshots of volumes."""
