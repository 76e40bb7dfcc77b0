"""What goes between nodes, within a process and between processes.

An activation travels on a link: a copy in one process, else a value of the
transport, whose connections may break. Read `transport`, then `protocol`.

  links        one direction between two nodes; all of them, by channel
  ordered_sum  the sum of gradients over shares, between processes

  transport    values to and from all other nodes, by channel and attempt
  peer         one other node: threads and sockets
  protocol     delivery of values, also when a connection breaks or a peer
               dies: a state machine without I/O
  frame        what is written, as bytes
  values       lists of arrays, and how their bytes are described
  endpoints    where a node listens and dials: Unix sockets, mutual TLS
  sockets      connected sockets, plain or TLS
  pool         memory for received values that is used again
"""
