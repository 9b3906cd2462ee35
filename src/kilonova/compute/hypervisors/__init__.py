"""Hypervisors: the hosts that run the servers, and what they have left."""
