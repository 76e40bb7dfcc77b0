"""Explores what may happen to a cluster, by simulating its real decisions.

  loop     virtual time, and asyncio loops of processes in it; they may be stopped and killed
  mesh     hosts, links and connections, and their faults
  place    the records of a run, and what goes wrong on the way to them
  worker   a worker that keeps to the protocol and computes hashes
  cluster  hosts with the real agent and a worker, and the trace of what they do
  faults   kinds of faults, and how a cluster suffers them
  plans    faults as a plan, drawn from a seed; shrinks
  history  runs a plan, and says what was violated
  wire     histories of the transport between two workers
  corpus   plans that once violated an invariant
  mutants  one-line faults of the control plane, and how many are found

A history is the same each time for a plan. `python -m tests.explorer` runs many.
"""
