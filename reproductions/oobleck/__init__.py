"""Oobleck's evaluation against Varuna and Bamboo.

  inputs     throughputs, constants and traces, as published
  rules      how Oobleck and Varuna handle losses and ends of steps
  artifact   a system on a trace by these rules, flaws included
  ours       the same inputs in our own simulator
  evaluation an experiment: by the rules of the artifact, and by sound ones

The event loop is `bamboo.loop`. Read `artifact` first.
"""
