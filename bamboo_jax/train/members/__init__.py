"""Cohorts: what a worker knows of the other members.

cohort          the interface; read first
local_cohort    one member that hosts all nodes, and dies on purpose in parts
cluster_cohort  a process of a cluster, over `cluster.client`
transfers       connects ahead of time, and ends what a death has left
"""
