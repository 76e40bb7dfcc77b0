"""Explores what may happen to a cluster, by simulating its real decisions.

  loop     virtual time, and asyncio loops of processes in it; they may be stopped and killed
           what blocks, as a real worker does, runs in greenlets
  mesh     hosts, links and connections, and their faults
  place    the records of a run, and what goes wrong on the way to them
  worker   a host with the real agent, and a worker that keeps to the protocol and computes hashes
  plans    kinds of faults, and plans of them, drawn from a seed; shrinks
  history  carries a plan out, and says what was violated
  wire     histories of the transport between two workers
  corpus   plans that once violated an invariant
  mutants  one-line faults of the control plane, and how many are found

A history is the same each time for a plan. `python -m tests.explorer` runs many.
"""
