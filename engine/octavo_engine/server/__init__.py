"""The OpenAI-compatible HTTP server over an `EngineClient`. Knows no torch and no scheduler."""
