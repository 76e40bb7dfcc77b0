"""Times of layers and instructions.

profiler  Times of each layer, measured or estimated, for the planner.
recorder  Times of the instructions of a step.
"""
