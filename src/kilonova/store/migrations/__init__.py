"""Alembic's environment: forward-only revisions, and snapshots of the resulting schema."""
