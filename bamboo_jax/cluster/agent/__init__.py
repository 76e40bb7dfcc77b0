"""The agent of a node: a process that watches its worker and the other agents.

agent           the protocols of an agent, step by step; start here
roster          what it knows of the others; nodes to remove, to admit, to start with; pure
suspicion       which agents suspect which, and which nodes to remove for it; pure
watch           silent agents, and the agent's own worker; pure
board           values that nodes post for each other; pure
mesh            connections with other agents
worker_process  the worker
exporter        metrics for Prometheus
"""
