"""Models of text: transformers, and translation with LSTM layers.

  gpt2         GPT-2 in all sizes
  bert         BERT: masked tokens and pairs of texts
  llama        Llama 3 and Qwen 3
  gnmt         GNMT, an LSTM encoder and decoder with attention
  greedy       its translations
  transformer  layers and products, as the first three have them

  attention, dense, losses   of GPT-2, and in part of others; keep little for
                             the backward pass

Read `gpt2`.
"""
