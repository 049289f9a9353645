"""Running models: devices, sessions, made-up inputs, the oracle, folding and timing."""
