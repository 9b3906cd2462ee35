"""Quotas of a project."""
