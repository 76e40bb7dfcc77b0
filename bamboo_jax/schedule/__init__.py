"""Schedules of a step as data: the instructions of each node, in order.

Pure Python, without a device. One function, `simulate.simulate`, makes the rows
of a whole step and those after a death; they differ in the owners of stages and
in the data that nodes hold.

  instruction      forward, backward, redundant forward, send, receive; rows
  channel          routes of values between nodes
  costs            time and memory of each stage
  lines            routes of microbatches through the nodes of pipelines
  holdings         the data of a step that a node holds
  failover         owners and shadows of stages, before and after a death

  owed             from holdings to owed work; finds the lazy redundant backward
                   passes
  simulate         from owed work to rows and their times
  timeline         rows with times; the peak of their memory
  checker          refuses rows that would give wrong gradients or hang
  dealing          distributes owed work so that a step ends soonest

  rule             which redundant forward passes a node may run while it waits
  redundancy       modes of redundancy, what they cost and protect
  render           a timeline as text

Read `instruction`, then `simulate`.
"""
