"""Schedules of a step as data: the instructions of each node, in order.

Pure Python, without a device. One function, `scheduler.plan_rows`, makes the
first schedule of a step and the one after a death; they differ in the owners of
stages and in the data that nodes hold.

  instruction      forward, backward, redundant forward, send, receive; rows
  channel          routes of values between nodes
  costs            time and memory of each stage
  failover         owners and shadows of stages, before and after a death
  holdings         the data of a step that a node holds
  lines            routes of microbatches through the nodes of pipelines
  dealing          distributes owed work so that a step ends soonest

  scheduler        from holdings to rows; its three steps are in scheduling/,
                   the first of them finds the lazy redundant backward passes

  redundancy       where redundant forward passes go (none, lazy, bubble,
                   budget, eager), what they cost and protect; with waits
  filling          decides where they go in waits as these occur
  timeline         plays rows against durations; with checker, footprint; one
                   order of all nodes' instructions, for one thread
  render           a timeline as text

Read `instruction`, then `scheduler`.
"""
