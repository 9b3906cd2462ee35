"""What the API once had and no longer has."""
