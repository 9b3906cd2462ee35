"""Availability zones: aggregates of hosts that users may choose between."""
