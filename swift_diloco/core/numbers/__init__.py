"""Arithmetic on arrays: codecs, digests, merging, the outer optimizer. Deterministic; no file, no socket."""
