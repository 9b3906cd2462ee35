"""Quotas and limits of volumes."""
