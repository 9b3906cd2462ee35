"""Attachments of volumes to servers and hosts."""
