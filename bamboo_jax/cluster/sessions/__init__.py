"""Coordination services of JAX: each has so many slots, and may die.

  eras   which node has which slot of which service; pure

`launch.coordinator` starts services, `agent/services` has those that an agent
knows, and `proxy` is the way to one.
"""
