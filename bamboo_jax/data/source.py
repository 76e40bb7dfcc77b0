"""Sources of training data by name, or by the paths of files.

`stdlib_text`, sources and help topics of the running Python, needs no download;
12 MB. It differs between versions of Python.
"""

from collections.abc import Callable, Mapping, Sequence
import inspect
import re
from typing import Any

from bamboo_jax import base
from bamboo_jax.data import corpus, markov, masked, samples, vocabularies
from bamboo_jax.data.disk import files, packing, token_files


def make_source(
    name: str, shape: Mapping[str, Any] | None = None, /, **options: Any
) -> samples.Source:
  """Returns the source called `name`, or one of files or the user's own.

  A name with a slash, a dot, a wildcard or a blank is the `path` of the source
  `files`. One of the user's own is "file.py:function", see
  `base.find_function`. The function takes its own options, and those of `shape`
  (`sequence_length`, `vocab_size`, ...) that it has as arguments. It returns a
  `samples.Source`, arrays by name for `samples.from_arrays`, or a random access
  source of Grain for `samples.from_records`.

  Args:
    shape: Options that follow from the model.
    **options: Arguments of the source; None stands for the default, so that one
      set of options serves all sources. With `num_masked` the samples are those
      of `masked`, for BERT.

  Raises:
    ValueError: The source or an option does not exist, or does not fit.
    base.DataError: The text cannot be read or is too short.
  """
  if base.is_function_name(name):
    return _make_own(name, shape or {}, options)
  options = {**(shape or {}), **options}
  if options.get("num_masked") is not None:
    return _make_masked(name, **options)
  if name not in _SOURCES and is_files(name):
    return make_source("files", shape, path=name, **options)
  if name in _MOVED:
    raise ValueError(
        f"The data source {name!r} is now 'bamboo_jax.reproductions.paper_models.{_MOVED[name]}'."
    )
  if name not in _SOURCES:
    raise ValueError(base.suggest(name, _SOURCES, what="data source"))
  signatures = map(inspect.signature, _SOURCES.values())
  every = set().union(*(signature.parameters for signature in signatures))
  # An unknown option is an error even if it is None.
  given = {k: v for k, v in options.items() if {k} - every or v is not None}
  base.check_options(_SOURCES[name], given, what=f"data source {name!r}")
  return _SOURCES[name](**given)


def open_source(name: str, shape: Mapping[str, Any], options: Mapping[str, Any]) -> samples.Source:
  """Returns the source that a config names; see `make_source`.

  If a file is missing, `base.DataError` names the option.
  """
  base.refuse_url("config.data.name", name)
  try:
    return make_source(name, shape, **options)
  except base.MissingFileError as error:
    values = {f"options.{key}": v for key, v in options.items()}
    values["name"] = name
    # A mixture names several, with their weights.
    keys = [key for key, v in values.items() if error.pattern in str(v)]
    if not keys:  # A function of the user's own names it.
      raise
    raise base.DataError(f"config.data.{keys[-1]}: {error}") from error


def is_files(name: str) -> bool:
  """Returns whether a name is that of the source `files`, or of such files."""
  is_path = bool(re.search(r"[/.*\s]", name))
  return name == "files" or (is_path and not base.is_function_name(name))


def _make_own(name: str, shape: Mapping[str, Any], options: Mapping[str, Any]) -> samples.Source:
  function = base.find_function(name, what="data source")
  known = inspect.signature(function).parameters
  given = {k: v for k, v in shape.items() if k in known} | dict(options)
  base.check_options(function, given, what=f"data source {name!r}")
  found = function(**given)
  if isinstance(found, samples.Source):
    return found
  if isinstance(found, Mapping):
    return samples.from_arrays(found)
  if hasattr(found, "__len__") and hasattr(found, "__getitem__"):
    return samples.from_records(found)
  raise ValueError(
      f"Data source {name!r} must return a Source, arrays by name or a random "
      f"access source of Grain, got {type(found).__name__}."
  )


def _make_masked(
    name: str,
    *,
    num_masked: int,
    sequence_length: int,
    vocab_size: int | None = None,
    documents: bool | None = None,
    **options: Any,
) -> samples.Source:
  """Returns masked samples; `vocab_size` counts special tokens."""
  num_around = 0 if documents else masked.NUM_AROUND
  least = num_around + 2
  if sequence_length < least:
    raise ValueError(
        f"sequence_length must be at least {least} with num_masked, got " f"{sequence_length}."
    )
  tokens = make_source(
      name,
      sequence_length=sequence_length - num_around,
      vocab_size=vocab_size and vocab_size - masked.NUM_SPECIAL,
      documents=documents,
      **options,
  )
  return masked.make_masked(tokens, num_masked, packed=bool(documents))


def _make_stdlib_text(
    *,
    sequence_length: int,
    vocab_size: int | None = None,
    tokenizer: str | None = None,
    heldout_fraction: float = 0.02,
) -> samples.Source:
  """Returns windows of sources and help topics of the running Python.

  Args:
    vocab_size: Maximum number of tokens.
    tokenizer: As of `files.make_files`.
    heldout_fraction: Share of the text, at its end, for evaluation.
  """
  samples.check_fraction(heldout_fraction)
  documents = corpus.read_stdlib()
  parts = corpus.split_tail(documents, fraction=heldout_fraction)
  vocabulary = vocabularies.read_vocabulary(tokenizer, vocab_size)
  size = vocabulary.vocab_size
  texts = [
      token_files.TokenFile("stdlib_text", len(tokens), tokens.dtype, size, tokens=tokens)
      for tokens in (vocabularies.encode(vocabulary, part) for part in parts)
  ]
  return packing.make_source(
      texts[:1],
      texts[1:] if parts[1] else [],
      packing.PackingOptions(sequence_length),
      vocab_size=size,
      special=vocabulary.special,
      **describe_text("stdlib_text", *(documents, vocabulary, sequence_length, heldout_fraction)),
  )


def describe_text(
    name: str,
    documents: Sequence[corpus.CorpusDocument],
    vocabulary: vocabularies.Vocabulary,
    sequence_length: int,
    heldout_fraction: float,
) -> dict[str, Any]:
  """Returns manifest and fingerprint of a source of texts, by field of `samples.Source`."""
  manifest = corpus.make_manifest(documents)
  fingerprint = {
      "source": name,
      "text_sha256": corpus.find_sha256(manifest),
      "sequence_length": sequence_length,
      "heldout_fraction": heldout_fraction,
      **vocabulary.fingerprint,
  }
  return {"manifest": manifest, "fingerprint": fingerprint}


_SOURCES: Mapping[str, Callable[..., samples.Source]] = {
    "files": files.make_files,
    "stdlib_text": _make_stdlib_text,
    "synthetic": markov.make_walks,
}
_MOVED = {  # Names of before, and the functions.
    "image_folder": "image_folder:make_image_folder",
    "stripes": "stripes:make_stripes",
    "translation": "pairs:make_translation",
}
