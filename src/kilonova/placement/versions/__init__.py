"""One file for each microversion: what it changed, and its entry in the public history."""
