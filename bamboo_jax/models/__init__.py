"""Models as lists of layers, any range of which can run as a stage.

  layer     what a layer is: variables, ties, loss, init, apply
  model     a list of layers; keys of dropout; running a range of them
  units     neighbouring layers that are computed together
  zoo       models by name
  gpt2      GPT-2 in all sizes
  bert      BERT: masked tokens and pairs of texts
  llama     Llama 3 and Qwen 3
  resnet    ResNet-50 and -152
  convnet   AlexNet and VGG-19
  images    the first and the last layer of these
  gnmt      GNMT, an LSTM encoder and decoder with attention
  mlp_bn    a small network with batch normalisation, for tests
  linen     a layer made of a flax module
  shape     what options of transformers must obey

  attention, dense, dropout, losses   of GPT-2, and in part of others; keep
                                      little for the backward pass

Read `layer`, then `gpt2`.
"""
