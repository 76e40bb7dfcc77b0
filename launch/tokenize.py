r"""Writes texts and records as files of tokens, in parallel.

bamboo tokenize --path='wiki/*.jsonl' --tokenizer=llama --out=wiki_tokens
bamboo train --config=llama --config.data.name=wiki_tokens/ --workdir=runs/wiki

`--path` is a file, a folder or a glob pattern of texts, JSON (lines or a list),
Parquet, Arrow, ArrayRecord, or a folder of `datasets`; texts and JSON also as
.gz and .zst, one part each. Each part of about 64 MiB becomes
a .bin and an .idx, as Megatron-LM reads them. After an interruption the same
command goes on with the parts that are missing.
"""

import os
import sys
import time

from absl import flags
import tqdm

from bamboo_jax.launch import cli

_PATH = flags.DEFINE_string("path", None, "What to read.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
_TOKENIZER = flags.DEFINE_string(
    "tokenizer",
    None,
    "A tokenizer.json, a SentencePiece file, or the folder of one; by default "
    "each byte is a token.",
)
_FIELD = flags.DEFINE_string(
    "field",
    "text",
    "Field of records with the text or its tokens; two, as prompt,completion, "
    "mark prompts, which are not learned; messages, of chats, takes the tokenizer's template.",
)
_END_TOKEN = flags.DEFINE_integer(
    "end_token", None, "Token that ends a document; by default the tokenizer's.", lower_bound=0
)
_PROCESSES = flags.DEFINE_integer("processes", None, "By default one for each core.", lower_bound=1)


def main() -> None:
  """Writes the files, and prints how many tokens they have."""
  from bamboo_jax.data.disk import files, tokenizing

  names, paths = zip(*files.find_files(_PATH.value), strict=True)
  fields = tuple(_FIELD.value.split(","))
  task = tokenizing.TokenizingTask(
      *(paths, names, _TOKENIZER.value, fields), end_token=_END_TOKEN.value
  )
  num_workers = _PROCESSES.value or len(os.sched_getaffinity(0))
  start = time.monotonic()
  with tqdm.tqdm(unit="part", disable=not sys.stderr.isatty()) as bar:
    for done in tokenizing.run(task, _OUT.value, num_workers=num_workers):
      bar.total = done.num_parts
      speed = done.num_tokens / max(time.monotonic() - start, 1e-3)
      bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
      bar.update(done.num_finished - bar.n)
  print(
      f"{_OUT.value}: {done.num_tokens:,} tokens of {done.num_documents:,} "
      f"documents written, {speed:,.0f} tokens/s; {done.num_parts} parts"
  )


if __name__ == "__main__":
  cli.run(main)
