"""One file for each microversion: its changes, and its text in the public history."""
