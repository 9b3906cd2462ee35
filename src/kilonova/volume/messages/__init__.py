"""User messages: why an operation failed."""
