"""Bindings of a port to hosts: one is active, others stand by for a move."""
