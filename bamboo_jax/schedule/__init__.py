"""Schedules of a step as data: the instructions of each node, in order.

Pure Python, without a device. One function, `simulate.simulate`, makes the rows
of a whole step and those after a death; they differ in the owners of stages and
in the data that nodes hold.

  instruction      forward, backward, redundant forward, send, receive; rows
  channel          routes of values between nodes
  costs            time and memory of each stage
  holdings         the data of a step that a node holds
  lines            routes of microbatches through the nodes of pipelines; from
                   holdings to owed work, with the lazy redundant backward passes
  failover         owners and shadows of stages, before and after a death

  simulate         from owed work to rows and their times
  timeline         rows with times, also as text
  checker          refuses rows that would give wrong gradients or hang
  dealing          distributes owed work so that a step ends soonest

  rule             which redundant forward passes a node may run while it waits;
                   plays rows by it
  redundancy       modes of redundancy, what they cost and protect

Read `instruction`, then `simulate`.
"""
