"""Models as lists of layers, any range of which can run as a stage.

  linen     a layer: a module of flax, or a function
  layer     variables, losses and ties of layers
  model     a list of layers; keys of dropout; running a range of them
  remat     which values layers keep, and which are recomputed
  units     neighbouring layers that are compiled together
  zoo       models by name
  from_loss the user's own training function as a model of one layer
  text      GPT-2, BERT, Llama 3, Qwen 3
  paced     layers that sleep rather than compute
  dropout   dropout that is cheap to draw and to keep
  shape     sizes of a model: variants, and their constraints
  sharding  how parameters are sharded over several devices

Read `linen`, then `text.gpt2`.
"""
