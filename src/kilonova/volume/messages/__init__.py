"""Why something failed, in words for users."""
