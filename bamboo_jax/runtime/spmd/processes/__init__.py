"""Programs over devices of several processes, by JAX's multi-process runtime.

Nothing else in the project uses that runtime: a collective that has lost a peer
cannot be aborted, so it is ended from outside, see the picture in `settle`.
Read `collectives` first.

  collectives   the part of a member in collective transfers
  transfer_log  records begun transfers; stops new ones
  settle        which transfers a member must end after a death; pure
  black_holes   names links that drop large packets
  connections   shuts down the sockets of transfers with dead nodes
  private_jax   the functions of JAX that are not public
  coordination  a coordination service of JAX per process
  rendezvous    exchanges the addresses of processes that connect
"""
