"""Comparison of the inner tensors of two models, or of two runs of one model.

Verification compares outputs; this package finds the first tensor that departs. Values of the main graphs are
matched by name and by provenance (:mod:`.matched_values`). Both models run in chunks of nodes, each in a
separate session (:mod:`.node_chunks`, :mod:`.chunked_run`), and the tensors of both runs are compared as
soon as both exist (:mod:`.paired_streams`), so that neither a model nor its tensors need to fit into memory.
:mod:`.tensor_comparison` compares two tensors, and :mod:`.departures` defines the result.
"""
