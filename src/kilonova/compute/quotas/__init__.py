"""Quotas of projects and users. Usage is counted when resources are requested."""
