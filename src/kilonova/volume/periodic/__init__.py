"""Periodic tasks of the volume service. Compute's workers run them together with those of compute."""
