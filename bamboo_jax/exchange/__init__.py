"""Weights from and for other programs: folders as `transformers` has them.

  names        the tensors of a family of models, and our arrays
  hub_config   config.json and our options
  hub_folder   reads and writes such a folder; finds all that does not fit
  companions   tokenizers and other files that travel with weights
  weights      a folder of either kind by layer; both directions

Read `weights`, then `names`.
"""
