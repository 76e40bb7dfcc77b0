"""What layers, programs and instructions take.

profiler       Times of each layer, measured or estimated, for the planner.
recorder       When the instructions of a step ran.
program_times  Times of the programs of a stage, one by one.
flops          Operations that a model needs.
mfu            Which share of the device's peak that is.
"""
