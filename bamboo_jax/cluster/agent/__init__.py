"""The agent of a node: decisions without I/O, and a shell around them.

  core            an event comes in, actions go out; start here
  events          what can happen, and what can be done about it
  state           what an agent knows, and the flows under way
  membership      what happens when a node dies, and how a view comes about
  arrival         how a join goes
  own_worker      what the worker says, and that it has ended
  roster          who there is, and who makes the next view
  board           values that nodes post for each other
  watch           who has been silent for too long
  services        the coordination services that an agent knows

All of that is pure: a test or a simulator plays the world around it, see
`tests/cluster/agent/simulation`. With sockets, timers and processes:

  agent           the shell; connects the core to what follows and to the store
  peers           connections with other agents
  worker_process  the worker
  options         what an agent is told when it is started
"""
