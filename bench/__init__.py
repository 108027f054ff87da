"""Measures the service against a plain proxy on the same machine at the same time. `make bench` runs it."""
