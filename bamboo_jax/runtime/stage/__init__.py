"""What one node computes for one stage, without any other node.

spec       What a stage is: its layers, units, and all shapes. Read this first.
casts      Weights that passes read in a lower precision, cast once for a step.
functions  Forward, backward, update and so on of a unit, to be traced.
programs   The same, compiled for a device; a stage runs those of its units.
passing    Results that are arguments are not copied.
store      The arrays of the current step: what is kept, and in which memory.
"""
