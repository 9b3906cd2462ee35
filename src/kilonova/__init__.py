"""Kilonova: a compute control plane that speaks the OpenStack Compute and Placement APIs."""

__version__ = "0.1.0"
