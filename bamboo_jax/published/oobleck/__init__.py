"""Oobleck's evaluation against Varuna and Bamboo.

  inputs     throughputs, constants and traces, as they are published
  rules      what a loss and the end of a step mean to Oobleck and Varuna
  artifact   a system on a trace by these rules, flaws and all
  ours       the same inputs in our own simulator

The event loop is `bamboo.loop`. Read `artifact` first.
"""
