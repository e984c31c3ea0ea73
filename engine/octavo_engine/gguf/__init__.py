"""GGUF files read as Hugging Face checkpoints: config, tensors, tokenizer."""
