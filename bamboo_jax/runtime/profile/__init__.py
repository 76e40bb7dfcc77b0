"""Times of layers and instructions.

products   Counts the products of a program, for `roofline` and MFU.
profiler   Times of each layer, measured or estimated, for the planner.
recorder   Times of the instructions of a step.
roofline   Times of layers on a GPU that is not there.
"""
