"""Trains large networks on machines that may vanish at any moment."""
