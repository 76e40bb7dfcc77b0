"""The store: all that nodes share besides their connections.

registry      the keys of a run; start here
etcd          a client of etcd, and all keys
fence         a file in the workdir: which life of which run may write there
private_etcd  an etcd of one's own, on one machine
"""
