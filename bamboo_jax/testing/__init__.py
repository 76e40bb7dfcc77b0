"""Looks for faults that break what the library promises.

Commands run it: `bamboo verify`.

  fault_sweep  deaths at every point of real steps, and random layouts
  redone       what a table of ticks repeats after a death, and the bound of it
"""
