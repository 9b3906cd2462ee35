"""Compute services: the agents and workers of the cloud, and their state."""
