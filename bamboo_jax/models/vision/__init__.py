"""Networks for images.

  images    their first and their last layer; convolutions
  resnet    ResNet-50 and -152
  convnet   AlexNet and VGG-19

Read `images`.
"""
