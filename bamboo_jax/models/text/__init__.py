"""Models of text.

  gpt2         GPT-2 in all sizes
  bert         BERT: masked tokens and pairs of texts
  llama        Llama 3 and Qwen 3
  transformer  layers and products that they share; adapters of low rank

  attention, dense, losses   of GPT-2, partly shared; few residuals for the
                             backward pass
  cudnn                      attention of long sequences on GPUs

Read `gpt2`.
"""
