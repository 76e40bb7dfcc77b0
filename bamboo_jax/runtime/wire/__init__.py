"""What goes between nodes, within a process and between processes.

An activation travels on a link: a copy in one process, else a value of the
transport, whose connections may break. Read `transport`, then `protocol`.

  links        how an array gets from one node to another, by channel
  ordered_sum  the sum of gradients over shares, between processes

  transport    values to and from all other nodes, by channel and attempt
  protocol     which values to send, to send again, to deliver and to drop, and values as
               bytes: pure
  endpoints    where a node listens and dials, and what it reads and writes there
"""
