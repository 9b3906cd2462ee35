"""Key pairs: public keys of users for their servers."""
