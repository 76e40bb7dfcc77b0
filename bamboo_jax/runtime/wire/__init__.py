"""What goes between nodes, within a process and between processes.

An activation travels on a link: a copy in one process, else a value of the
transport, whose connections may break. Read `transport`, then `protocol`.

  link         one direction between two nodes
  links        all links of this process, by channel
  share_sum    the sum of a stage's gradients over shares, in one process
  ordered_sum  the same sum between processes, with the same bits
  mesh         arrays over the devices of a program that joins them

  transport    values to and from all other nodes, by channel and attempt
  peer         one other node: threads and sockets
  protocol     what makes it reliable, as a state machine without I/O
  frame        what is written, as bytes
  values       lists of arrays, and how their bytes are described
  endpoints    where a node listens and dials: Unix sockets, mutual TLS
  sockets      connected sockets, plain or TLS
  pool         memory for received values that is used again
"""
