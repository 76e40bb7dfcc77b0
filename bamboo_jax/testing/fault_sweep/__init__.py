"""Deaths at every point of real steps; `bamboo verify` runs them.

cases    who dies when: single deaths, pairs, second deaths in a recovery
storm    deaths and joins over and over, drawn as a run goes on
trials   trains with one case, and compares the state to the bit
sweep    all cases of several configs
jobs     layouts, or clusters of processes with them, as jobs of a sweep
clusters layouts of processes, of which some are killed
layouts  random layouts, which must have one state; `bamboo verify --layouts=N` runs them
"""
