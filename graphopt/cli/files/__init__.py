"""Files that commands read and write.

- ``optimize_files.py``: the file for each result of ``optimize``.
- ``check_output_paths.py``: checks that a path can be written to.
- ``kernel_libraries.py``: libraries of native kernels next to models.
- ``sample_model.py``: the model that commands read by default, ``sample.onnx``.
- ``standard_input.py``: a model from standard input.
"""
