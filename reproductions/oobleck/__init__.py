"""Oobleck's evaluation against Varuna and Bamboo.

  artifact   inputs as published, and a system on a trace by the artifact's rules, flaws included
  evaluation an experiment: by these rules, and from the same inputs in our own simulator

The event loop is `bamboo.loop`. Read `artifact` first.
"""
