"""The decoder that serves every family, and the table that turns configs into its choices."""
