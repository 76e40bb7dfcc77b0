"""The three steps of `scheduler.plan_rows`, in this order.

owed             what is still to be computed: at the start everything, after
                 a death the (lazy) redundant backward passes too
list_scheduler   the order of passes on each node: 1F1B, GPipe
place_transfers  sends and receives between them, without deadlock
"""
