"""The store: all that nodes share besides their connections.

registry      the keys of a run; start here
endpoint      a file that tells where the store of a local cluster is
etcd          a client of etcd, and all keys
endpoints     where etcd is, as users write it, and advice if that is wrong
fence         files in the workdir: who may write there; one view of each number
tenure        the fence as one process holds it that trains alone
private_etcd  an etcd of one's own, on one machine
"""
