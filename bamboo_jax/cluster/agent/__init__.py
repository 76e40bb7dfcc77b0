"""The agent of a node: decisions without I/O, and a shell around them.

  core            an event comes in, actions go out; start here
  events          events, actions and requests, as values
  state           its options and state, and the flows under way
  membership      what happens when a node dies, and how a view comes about
  selection       who is left out, who is taken in, and who begins
  arrival         how a join goes
  run_over        the end of a run of which nobody is left
  run_stamp       which run this is, and what if the store has lost it
  own_worker      messages and exit of the worker
  knowledge/      of the others: who there is, who is silent, who suspects whom
  links           connections with other agents: which stand
  heartbeats      signs of life: who gives them to whom

All of that is pure: a test or a simulator plays the world around it, see
`tests/simulation`. With sockets, timers and processes:

  agent           the shell; connects the core to what follows and to the store
  peers           connections with other agents
  worker_process  the worker
  exporter        metrics for Prometheus
"""
