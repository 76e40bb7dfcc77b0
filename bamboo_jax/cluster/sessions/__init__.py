"""Coordination services of JAX: each has so many slots, and may die.

  eras   which node has which slot of which service; pure

`launch.coordinator` starts services, `agent/services` is what an agent knows of
them, and `proxy` the way to one.
"""
