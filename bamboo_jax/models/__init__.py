"""Models as lists of layers, any range of which can run as a stage.

  layer     what a layer is: variables, ties, loss, init, apply
  model     a list of layers; keys of dropout; running a range of them
  zoo       models by name
  gpt2      GPT-2 in all sizes
  mlp_bn    a small network with batch normalisation, for tests
  linen     a layer made of a flax module

  attention, dense, dropout, losses   programs of GPT-2's layers that keep
                                      little for the backward pass

Read `layer`, then `gpt2`.
"""
