"""Pages and who works in a step: plain Python, no torch, pure data in and out."""
