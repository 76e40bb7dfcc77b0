"""Explores the transport between two nodes over a bad network.

network  connections whose bytes are delayed, cut and lost
history  two real `TransportProtocol`s, what happens to them, and what must hold
mutants  one-line faults of the transport, and how many are found
"""
