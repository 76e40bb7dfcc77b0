"""Cohorts: a worker's interface to the other members.

cohort          the interface; read first
local_cohort    one member that hosts all nodes and injects their faults
cluster_cohort  a process of a cluster, over `cluster.client`
"""
