"""Placements: why a server is where it is, or nowhere. Attempts to find a host, and plans that were only tried."""
