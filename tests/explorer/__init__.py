"""Explores histories of a cluster: simulated faults, real decisions.

  loop     virtual time, and asyncio loops of processes, which may be stopped and killed; code
           that blocks, as that of a real worker, runs in greenlets
  mesh     hosts, links and connections, and their faults
  place    the records of a run, and the faults on the way to them
  worker   a host with the real agent, and a worker that follows the protocol and computes hashes
  plans    kinds of faults, and plans of them, drawn from a seed; shrinks
  history  carries a plan out, and finds violated invariants
  wire     histories of the transport between two workers
  corpus   plans that once violated an invariant
  mutants  one-line faults of the control plane, and how many are found

A plan always gives the same history. `python -m tests.explorer` runs many.
"""
