"""How a server's processors and memory are laid out."""
