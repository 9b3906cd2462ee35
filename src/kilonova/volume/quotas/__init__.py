"""Quotas and limits of volumes and snapshots."""
