"""One file per microversion: the changes since the previous version."""
