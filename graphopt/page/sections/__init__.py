"""The sections of the page, one module each (:mod:`graphopt.page.section`)."""
