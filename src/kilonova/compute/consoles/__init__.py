"""Consoles of servers: console log and console URLs."""
