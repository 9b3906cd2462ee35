"""Types of volumes."""
