"""What goes between nodes, and how it is ended when one of them dies.

An activation travels on a link: a copy in one process, else a collective of two
devices. Read `link` first. JAX cannot abort a transfer, so one that a death has
left without its other end is dealt with from outside, see the picture in
`spmd.processes.settle`:

  link           One direction between two nodes.
  links          All links of this process, by channel.
  share_sum      The sum of a stage's gradients over pipelines.
  mesh           Arrays over the devices of a program that joins them.
  transfer_log   Records what has begun; stops what has not.
  connections    Shuts down the sockets of transfers with the dead.
  preconnect     Connects nodes that will need each other after a death.
  coordination   What JAX knows of other processes, which come and go.
  rendezvous     Tells processes that connect each other's addresses.
"""
