"""Schedules of a pipeline step as data: what every node runs, in which order.

Pure Python, without a device. One function, `scheduler.plan_rows`, makes the
first schedule of a step and the one after a death; they differ in who owns
which stage and in what the nodes hold.

  instruction      forward, backward, redundant forward, send, receive; rows
  channel          which values travel between which nodes
  costs            time and memory of each stage
  failover         owners and shadows of stages; what a death makes of them
  holdings         what a node holds in the middle of a step
  lines            ways of microbatches through the nodes of several pipelines
  dealing          who computes what is owed, so that a step ends soonest

  scheduler        the whole way, from what is held to rows; its three steps
                   are in scheduling/

  redundancy       where redundant forward passes go (none, lazy, bubble,
                   budget, eager), what they cost and protect; with waits
  timeline         plays rows against durations; with checker, footprint
  linearize        one order of all nodes' instructions, for one thread
  pauses           how much longer a step takes if a node dies in it
  render           a timeline as text

  ticks/           the same for one program in lockstep: a table of ticks

Read `instruction`, then `scheduler`.
"""
