"""What the Compute API says of itself: versions, extensions, OpenAPI."""
