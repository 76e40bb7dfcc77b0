"""Simulators of two published artifacts, rule by rule; the papers' models.

The simulators reproduce published tables, and separate effects of the inputs from effects
of the rules. `bamboo simulate` runs them; our own simulator is `sim`. The rules
in words, and the published figures, are in `third_party/published`.

  bamboo/        Bamboo (NSDI'23), and the event loop that both artifacts share
  oobleck/       Oobleck against Varuna and Bamboo (SOSP'23)
  paper_models/  ResNet, VGG, AlexNet and GNMT, which trainings can run
  publish        where published figures are; writes tables, reports, comparisons
"""
