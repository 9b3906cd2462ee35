"""Hosts as old versions know them: which services run where, what a host has, and who uses it."""
