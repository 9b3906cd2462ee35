"""Floating addresses: external addresses that lead to a port."""
