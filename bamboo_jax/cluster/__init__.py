"""Membership: how nodes agree on who belongs to a run, with none in charge.

Each node has an agent and a worker. The worker trains; its agent watches it and
all other agents, and keeps the chain of views: numbered sets of nodes, each
made once, in the workdir, and told to etcd. Nothing here computes or imports
JAX.

  views       numbered sets of nodes, and which comes next; pure
  agent/      the agent: its decisions, and the shell that carries them out
  client      the other end of the agent, in the worker; its decisions are in
  client_state
  messages    messages of agents and workers, as values
  frames      how a message travels on a connection
  detection   when silence is a death
  stalls      which worker keeps all others waiting; pure
  notices     warnings of clouds before they take a machine
  store/      etcd, and the keys of a run
  identity    certificates: who may talk to whom
  addresses   addresses of IPv4 and IPv6
  door        accepts connections, and keeps strangers out
  children    processes that do not outlive their parent
  copies      children that begin with all that their parent has made

Read first: `views`, then `agent/membership`.
"""

from bamboo_jax.base import calls

calls.make_callable(__name__)
