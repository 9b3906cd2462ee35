"""Volumes on their way to another project."""
