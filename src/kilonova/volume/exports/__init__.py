"""Volumes over NBD: one daemon exports the files of the built-in service to hosts with real guests."""
