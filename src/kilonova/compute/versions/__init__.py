"""Microversions, one file each: the differences from the previous version."""
