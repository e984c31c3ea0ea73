"""The engine without a server: `LLM`, and files of requests."""
