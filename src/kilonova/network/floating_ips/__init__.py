"""Floating IPs."""
