"""Reading and writing models: file formats, external data, normalization, and fidelity of round trips."""
