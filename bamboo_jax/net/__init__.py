"""Addresses of hosts, and the identities of the processes of a run.

identity    certificates: which processes may connect
addresses   addresses of IPv4 and IPv6
callers     connections that have not said who they are
web         a server of HTTP
"""
