"""Tests against real Keystone, Glance, Neutron and Cinder."""
