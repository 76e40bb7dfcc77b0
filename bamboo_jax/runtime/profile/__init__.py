"""Times of layers and instructions.

flops      Operations that a model needs, for MFU.
estimates  Estimates of the profiler, kept for other processes.
profiler   Times of each layer, measured or estimated, for the planner.
recorder   Times of the instructions of a step.
"""
