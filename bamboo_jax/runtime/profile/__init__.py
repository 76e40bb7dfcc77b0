"""Times of layers, programs and instructions.

profiler       Times of each layer, measured or estimated, for the planner.
recorder       Times of the instructions of a step.
program_times  Times of the programs of a stage, one by one.
flops          Operations that a model needs.
mfu            Share of the device's peak that this is.
"""
