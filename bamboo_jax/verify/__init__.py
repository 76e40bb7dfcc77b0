"""Kills nodes of a user's own training everywhere, and compares the bits; `bamboo verify`.

A layout is a named change of the config, fixed or random; a case is who dies when in it. All
cases of a layout must end in the state of the run without deaths.

table    layouts times kinds of faults, as jobs of a sweep, and a row for each
layouts  random layouts, and the batch that all of them share; as clusters of processes, too
cases    who dies when: single deaths, pairs, second deaths in a recovery; storms, over and over
trials   trains with one case, and compares the state to the bit
"""
