"""The phases of a step, each a function of the engine.

`train` runs them in this order, after the instructions of `compute`:

  reduce   `tie` adds up gradients of parameters that layers share, `reduce`
           the shares of each stage; norms and losses.
  update   `refresh` sends each shadow what its replica needs. After the vote
           `apply` updates state and replicas; local, cannot fail.

Until the vote the state stays: a phase leaves its result in the stores of nodes, beside its
input, and may be run again.

  replicas       Compares the state of replicas, by fingerprint.
  compile_ahead  Programs of all kinds of units, for any role of a node.
"""
