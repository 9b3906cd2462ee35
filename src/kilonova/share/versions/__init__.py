"""Microversions of the Shared File System API: one file each."""
