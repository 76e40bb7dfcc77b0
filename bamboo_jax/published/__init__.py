"""Simulators of two published artifacts, rule by rule.

They reproduce published tables, and tell what in them follows from the inputs
and what from the rules. Our simulator is `sim`.

  bamboo/    Bamboo (NSDI'23), and the event loop that both artifacts share
  oobleck/   Oobleck against Varuna and Bamboo (SOSP'23)

`experiments` runs them; the rules, in words, are in `third_party/published`.
"""
