"""Addresses of servers."""
