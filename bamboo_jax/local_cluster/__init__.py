"""A whole cluster on this machine: real processes, which are really killed.

setup     faults, trace and zones of a run; checked
run       one run from the first process to the report; read first
machine   the processes: etcd and agents; who gets which place
director  strikes nodes when workers say that a fault is due
trial     runs that end when enough has been seen
node      the process of an agent, also on a machine of its own
"""
