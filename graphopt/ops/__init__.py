"""Facts about operators, by domain and type, and what changed between their versions."""
