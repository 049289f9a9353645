"""Check a GPU in a few minutes: errors, bandwidth and latency of models on onnxruntime's CUDA provider.

    make gpu-check                                  results in build/gpu-check, or in $OUT
    python3 -m benchmarks.gpu_check --device cpu    rehearse all sections on the CPU
    python3 -m benchmarks.gpu_check --only smoke kernels
    python3 -m benchmarks.gpu_check --models DIR    the models of a folder and the samples

The most informative sections run first. Each section runs in a separate process with a limit on its time.
Each result is appended to ``results.jsonl``, and the tables in ``results.md`` are rewritten, at once, so that
a run that is killed leaves its results. An item that fails or crashes its process is reported, and the
section continues with the next item in a new process. The exit status is 1 if a result is wrong or an item
fails, and 6 if CUDA can't be used.
"""
