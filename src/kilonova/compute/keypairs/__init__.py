"""Key pairs: public keys that users put into their servers."""
