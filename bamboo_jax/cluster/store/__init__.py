"""State that nodes share: keys in etcd, and files in the workdir.

registry      the keys of a run; start here
endpoint      a file with the address of the etcd of a local cluster
etcd          a client of etcd, and all keys
endpoints     parses --etcd, and explains errors
fence         files in the workdir: the log of views, and which run may write
tenure        the fence of a process that trains without agents
private_etcd  starts an etcd for a cluster on one machine
"""
