"""Volume types."""
