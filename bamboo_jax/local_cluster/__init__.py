"""A whole cluster on this machine: real processes, killed by real signals.

cluster_run  one run from the first process to the report; read first
machine      the agents, and places of nodes
strikes      faults that victims tell of, and those of the buttons of a page
inquiry      asks workers what they do
node         the process of an agent, on any machine
narrator     shows on its output how the run goes
"""
