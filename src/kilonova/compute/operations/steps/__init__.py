"""Steps that several operations share."""
