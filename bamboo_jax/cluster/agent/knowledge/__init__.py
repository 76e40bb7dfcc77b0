"""What an agent knows about the other agents; pure.

roster     the known agents, and the view they are in; start here
suspicion  which agents suspect which, and which nodes to remove for it
watch      silent agents, and the agent's own worker
board      values that nodes post for each other
"""
