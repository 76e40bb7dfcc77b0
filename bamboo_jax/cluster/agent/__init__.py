"""The agent of a node: decisions without I/O, and a shell around them.

  core            returns the actions for an event; start here
  events          events, actions and requests, as values
  state           options and state of an agent, and its running flows
  membership      what happens when a node dies, and how a view is made
  selection       nodes to remove, to admit, and to start with
  arrival         a join, step by step
  run_over        restart of a run that has lost all members
  knowledge/      known agents, silent ones, and their suspicions
  links           connections with other agents, and their failures

All of that is pure, and tested with a simulated network in `tests/explorer`.
With sockets, timers and processes:

  agent           the shell; connects the core to the judge and to:
  peers           connections with other agents
  worker_process  the worker
  exporter        metrics for Prometheus
"""
