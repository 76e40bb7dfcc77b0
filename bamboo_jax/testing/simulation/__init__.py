"""Explores what may happen to a cluster, by simulating its real decisions.

  clock    virtual time
  network  hosts, links and connections, and their faults
  store    etcd in memory, and its faults
  share    a folder that all share, and its faults
  world    these four together
  machine  a host: the real core of an agent in a simulated shell, and a worker
  worker   a worker that keeps to the protocol and computes hashes
  trainer  the real loop of workers in a thread, with nodes of `fake_engine`,
           links of `fake_transport`, checkpoints and logs of `fake_files`,
           the job of `fake_setup`
  kinds    what a fault may be
  plans    `faults` as a plan, drawn from a seed; shrinks
  history  runs a plan, and says what was violated
  wire     histories of the transport between two workers
  modes    a history of either, by mode and seed

A history is the same each time for a plan. `bamboo explore` runs many.
"""
