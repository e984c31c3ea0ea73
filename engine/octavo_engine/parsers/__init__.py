"""What a model's text means: reasoning, tool calls, content. State machines over text in pieces."""
