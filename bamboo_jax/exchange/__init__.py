"""Weights from and for other programs: folders of `transformers`.

  families     config.json and our options; tensors and our arrays
  hub_folder   reads and writes such a folder; reports all mismatches
  adapters     folders of `peft`: adapters of a model in another folder
  weights      a folder of either kind by layer; both directions; tokenizers and other
               files beside the weights

Read `weights`, then `families`.
"""
