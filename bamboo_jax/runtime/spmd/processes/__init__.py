"""Programs over devices of several processes, by JAX's multi-process runtime.

Nothing else in the project uses that runtime: a collective that has lost a peer
cannot be aborted, so it is dealt with from outside, see the picture in
`settle`. Read `collectives` first.

  collectives   all that a member does for collective transfers
  transfer_log  records what has begun; stops what has not
  settle        which transfers a member must end after a death; pure
  black_holes   names links that drop large packets
  connections   shuts down the sockets of transfers with the dead
  preconnect    connects nodes that will need each other after a death
  coordination  what JAX knows of other processes, which come and go
  rendezvous    tells processes that connect each other's addresses
"""
