#!/usr/bin/env bash
# See what each pass changed.
#     samples/02_dump.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" transformer cnn

# The changes of each pass: removed (-), added (+) and changed (~) lines; here those of two modules.
show graphopt dump "$out/cnn.onnx" --pass-by-pass --filter 'stem|head'

# New lines only. Shape arithmetic of an attention layer becomes constants.
show graphopt dump "$out/transformer.onnx" --pass-by-pass --changed --filter 'layer.0/attention'

# Every stage as a model that loads again.
show graphopt dump "$out/cnn.onnx" --pass-by-pass --changed --format onnx -o "$out/stages"
ls "$out/stages"

# List the passes, and the steps of a pipeline.
show graphopt passes
show graphopt pipelines show O2
