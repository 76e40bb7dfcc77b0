"""Does a step survive deaths wherever they happen? Checked without a device.

cuts         every state in which a failure can find the nodes
exhaustive   kills nodes at each of them, and plays the rest of the step
"""
