"""Networks as compute's clients knew them, and how the old ways to the network service ask it."""
