"""The three steps of `scheduler.plan_rows`, in this order.

owed             the work to do: at the start all passes, after a death also
                 the (lazy) redundant backward passes
one_f_one_b      the order of passes on each node: 1F1B, GPipe
place_transfers  sends and receives between them, without deadlock
"""
