"""Weights from and for other programs: folders of `transformers`.

  names        maps tensors of a family of models to our arrays
  hub_config   config.json and our options
  hub_folder   reads and writes such a folder; reports all mismatches
  adapters     folders of `peft`: adapters of a model in another folder
  weights      a folder of either kind by layer; both directions; tokenizers and other
               files beside the weights

Read `weights`, then `names`.
"""
