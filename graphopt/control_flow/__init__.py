"""Views of Loops, Scans and Ifs: trip counts, carried values, branches."""
