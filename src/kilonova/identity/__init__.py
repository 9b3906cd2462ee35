"""Identity: the built-in service (Identity API v3), its tokens, and the client to it or to a real Keystone."""
