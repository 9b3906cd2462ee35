"""How quick, how small: `make bench`."""
