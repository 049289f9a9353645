"""Printers of templates in C; a module binds ``PRINTER``, and has the name of its template."""
