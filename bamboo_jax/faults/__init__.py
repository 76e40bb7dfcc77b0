"""Fault injection: which nodes die, get a notice, or join, and when.

One file of faults serves runs in one process and clusters; each process injects
what hits the nodes that it hosts (`training.cohort`).

  faults  a fault, its file, the faults due in a step, and random ones
"""
