"""Pipelines of different depths that use all nodes (Oobleck, SOSP'23).

templates  the best partition for each number of nodes
cover      which templates cover all nodes with the fastest step
regroup    the paper's rules after a loss: keep, borrow, merge
"""
