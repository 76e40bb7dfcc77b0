"""Models as lists of layers, any range of which can run as a stage.

  linen     a layer: a module of flax, or a function
  layer     what layers hold, return and share: variables, loss, ties
  model     a list of layers; keys of dropout; running a range of them
  remat     what layers keep of a forward pass, and what is computed again
  units     neighbouring layers that are computed together
  zoo       models by name
  from_loss a training function of the user's own, as a model of one layer
  text      GPT-2, BERT, Llama 3, Qwen 3, GNMT
  vision    ResNet, AlexNet, VGG
  mlp_bn    a small network with batch normalisation, for tests
  paced     layers that only take their time
  dropout   dropout that is cheap to draw and to keep
  shape     sizes of a model: variants, and what they must obey
  sharding  how parameters are cut over several devices

Read `linen`, then `text.gpt2`.
"""
