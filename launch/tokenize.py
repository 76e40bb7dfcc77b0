r"""Writes texts and records as files of tokens, in parallel.

bamboo tokenize --path='wiki/*.jsonl' --tokenizer=llama --out=wiki_tokens
bamboo train --config=llama --config.data.name=wiki_tokens/ --workdir=runs/wiki

`--path` is a file, a folder or a glob pattern of texts, JSON (lines or a list),
Parquet, Arrow, ArrayRecord, or a folder of `datasets`; texts and JSON also as
.gz and .zst, one part each. Each part of about 64 MiB becomes
a .bin and an .idx, as Megatron-LM reads them. After an interruption the same
command goes on with the parts that are missing.
"""

import dataclasses
import os
import sys
import time

import tqdm

from bamboo_jax.cli.flagset import flag
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class TokenizeFlags:
  """Texts to read, and how."""

  path: str = flag(None, "What to read.", is_needed=True)
  out: str = flag(None, "Folder to write.", is_needed=True)
  tokenizer: str | None = flag(
      None, "A tokenizer.json, or its folder; by default each byte is a token."
  )
  field: str = flag(
      "text",
      "Field of records with the text or its tokens; two, as prompt,completion, mark prompts, "
      "which are not learned; messages, of chats, takes the tokenizer's template.",
  )
  end_token: int | None = flag(
      None, "Token that ends a document; by default the tokenizer's.", least=0
  )
  num_processes: int | None = flag(None, "By default one for each core.", least=1)


def main(flags: TokenizeFlags) -> None:
  """Writes the files, and prints how many tokens they have."""
  from bamboo_jax.data.disk import files, tokenizing

  named, fields = files.find_files(flags.path), tuple(flags.field.split(","))
  task = tokenizing.TokenizingTask(named, flags.tokenizer, fields, flags.end_token)
  num_workers = flags.num_processes or len(os.sched_getaffinity(0))
  start = time.monotonic()
  with tqdm.tqdm(unit="part", disable=not sys.stderr.isatty()) as bar:
    for done in tokenizing.run(task, flags.out, num_workers=num_workers):
      bar.total = done.num_parts
      speed = done.num_tokens / max(time.monotonic() - start, 1e-3)
      bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
      bar.update(done.num_finished - bar.n)
  print(
      f"{flags.out}: {done.num_tokens:,} tokens of {done.num_documents:,} "
      f"documents written, {speed:,.0f} tokens/s; parts: {done.num_parts}"
  )


if __name__ == "__main__":
  cli.run(main)
