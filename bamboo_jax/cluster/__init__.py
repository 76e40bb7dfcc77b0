"""Who belongs to a run, and how nodes agree on it without a node in charge.

Each node has an agent and a worker. The worker trains; its agent watches it and
all other agents, and keeps the chain of views: numbered sets of nodes, each
written to etcd once. Nothing here computes or imports JAX.

  views       numbered sets of nodes, and which comes next; pure
  agent/      the agent: what it decides, and what carries that out
  client      the other end of the agent, in the worker
  messages    what agents and workers say to each other, as values
  frames      how a message travels on a connection
  settle       which transfers have to be ended after a death; pure
  detection   when silence is a death
  stalls      whose fault it is when nothing goes on; pure
  notices     what clouds say before they take a machine
  sessions/   coordination services of JAX, one after the other
  store/      etcd, and what a run keeps there
  proxy       the way of a worker to a coordination service that may die
  blobs       bulk data between workers
  auth        who may talk to whom
  children    processes that do not outlive their parent

Read first: `views`, then `agent/membership`.
"""
