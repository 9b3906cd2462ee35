"""Which providers can give what is asked for, and in which arrangements."""
