"""Security groups and their rules as compute's clients knew them; the network service keeps them."""
