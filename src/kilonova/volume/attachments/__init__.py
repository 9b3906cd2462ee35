"""Attachments: who has a volume, and how it is reached."""
