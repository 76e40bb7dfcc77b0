"""The store: all that nodes share besides their connections.

registry      the keys of a run; start here
endpoint      a file that tells where the store of a local cluster is
etcd          a client of etcd, and all keys
fence         files in the workdir: who may write there; one view of each number
private_etcd  an etcd of one's own, on one machine
"""
