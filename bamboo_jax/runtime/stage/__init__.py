"""What one node computes for one stage, without any other node.

spec       What a stage is: its layers and all shapes. Read this first.
functions  Forward, backward, update and so on, as functions to be traced.
programs   The same, compiled for a device.
store      The arrays of the current step: what is kept, and in which memory.
"""
