"""The report page: one HTML file that shows a model, its optimization, and its runs.

:mod:`graphopt.page.page_data` is the schema of the data in the page, modules of :mod:`graphopt.page.sections`
add tables and charts, and :mod:`graphopt.page.render` writes the file. Scripts and style sheets are in
``assets/``.
"""
