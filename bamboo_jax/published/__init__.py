"""Simulators of two published artifacts, rule by rule.

They reproduce published tables, and separate effects of the inputs from effects
of the rules. Our simulator is `sim`.

  bamboo/    Bamboo (NSDI'23), and the event loop that both artifacts share
  oobleck/   Oobleck against Varuna and Bamboo (SOSP'23)

`experiments` runs them; the rules, in words, are in `third_party/published`.
"""
