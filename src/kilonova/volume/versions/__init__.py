"""One file per microversion; each says how its version differs from the one before."""
