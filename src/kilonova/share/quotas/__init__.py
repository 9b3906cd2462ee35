"""Quotas and limits of shares."""
