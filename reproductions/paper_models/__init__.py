"""The vision models and GNMT that Bamboo's evaluation trains, with their data.

They use the library as models of others do: configs name each model and source
of data as "module:function".

  images        the first and the last layer of networks for images
  resnet        ResNet-50 and -152
  convnet       AlexNet and VGG-19
  gnmt          GNMT, an LSTM encoder and decoder with attention; greedy translation
  stripes       generated images with a learnable rule
  image_folder  images in a folder for each class; augmented
  pairs         pairs of sentences, for translation

Read `resnet`, then `stripes`.
"""
