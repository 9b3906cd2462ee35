"""Shares: directories that guests mount."""
