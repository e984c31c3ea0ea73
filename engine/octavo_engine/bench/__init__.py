"""Puts load on an OpenAI-compatible server and measures what its clients see."""
