"""Floating addresses as compute's clients knew them: taken from pools, which are external networks."""
