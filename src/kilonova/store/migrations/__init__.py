"""Alembic's environment: forward-only revisions, and snapshots of what they add up to."""
