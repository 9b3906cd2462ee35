"""Transfers of volumes to other projects."""
