"""Allocation candidates: which providers can serve a request for resources."""
