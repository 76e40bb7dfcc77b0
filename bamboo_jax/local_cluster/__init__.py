"""A whole cluster on this machine: real processes, killed by real signals.

setup        faults, trace and zones of a run; checked
cluster_run  one run from the first process to the report; read first
machine      the agents, and places of nodes
director     injects faults when workers report that they are due
inquiry      asks workers what they do
page         a page on the run, with buttons
trial        runs that end after enough measurements
node         the process of an agent, on any machine
narrator     shows on its output how the run goes
"""
