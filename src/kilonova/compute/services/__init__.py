"""Compute services: the agents and workers of the cloud, and whether they are alive."""
