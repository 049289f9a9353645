"""Facts about operators, by domain and type."""
