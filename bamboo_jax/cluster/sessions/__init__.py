"""Coordination services of JAX, each with so many slots; may die.

eras   which node has which slot of which service; pure
"""
