"""What an agent knows of the others; pure.

roster     the known agents, and the view they are in; start here
suspicion  who suspects whom, and whom to leave out because of it
watch      who has been silent for too long, and the agent's own worker
routes     whom it is connected to, and who passes on to the others
board      values that nodes post for each other
"""
