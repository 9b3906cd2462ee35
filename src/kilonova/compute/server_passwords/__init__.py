"""Passwords that guests make for their users."""
