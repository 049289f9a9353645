"""Code shared by families of rules."""
