"""Port bindings: one is active, the others are inactive until a live migration activates them."""
