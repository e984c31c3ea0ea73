"""Between text and token ids: tokenizer, templates, incremental decoding, stop strings."""
