"""The store: the only thing that nodes share besides their connections.

registry      what a run keeps there; start here
etcd          a client of etcd, and all keys
private_etcd  an etcd of one's own, on one machine
"""
