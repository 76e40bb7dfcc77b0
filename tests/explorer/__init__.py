"""Explores what may happen to a cluster, by simulating its real decisions.

  clock    virtual time, and an asyncio loop in it
  network  hosts, links and connections, and their faults
  judge    the records of a run, and what goes wrong on the way to them
  world    these three together
  machine  a host: the real agent, on a loop in virtual time, and a worker
  worker   a worker that keeps to the protocol and computes hashes
  kinds    what a fault may be
  plans    `faults` as a plan, drawn from a seed; shrinks
  history  runs a plan, and says what was violated
  wire     histories of the transport between two workers
  corpus   plans that once violated an invariant
  mutants  one-line faults of the control plane, and how many are found

A history is the same each time for a plan. `python -m tests.explorer` runs many.
"""
