"""Models as lists of layers, any range of which can run as a stage.

  layer     what a layer is: variables, ties, loss, init, apply
  model     a list of layers; keys of dropout; running a range of them
  units     neighbouring layers that are computed together
  zoo       models by name
  text      GPT-2, BERT, Llama 3, Qwen 3, GNMT
  vision    ResNet, AlexNet, VGG
  mlp_bn    a small network with batch normalisation, for tests
  paced     layers that only take their time
  linen     a layer made of a flax module
  dropout   dropout that is cheap to draw and to keep
  shape     sizes of a model: variants, and what they must obey
  sharding  how parameters are cut over several devices

Read `layer`, then `text.gpt2`.
"""
