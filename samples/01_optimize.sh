#!/usr/bin/env bash
# Optimize a model, and read the report.
#     samples/01_optimize.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

# A small encoder as TorchScript exports it: two layers, dynamic batch and sequence, shape arithmetic everywhere.
show python3 "$samples/models.py" --out "$out" transformer classifier

# The result is checked against the original and written only if they agree.
show graphopt optimize "$out/transformer.onnx" -o "$out/transformer.opt.onnx"

# Several models go into a folder. With --exact, every rewrite keeps every bit of the results.
show graphopt optimize "$out/transformer.onnx" "$out/classifier.onnx" -o "$out/exact" --exact

# A pipeline of your own, and a report for programs.
show graphopt optimize "$out/transformer.onnx" -o "$out/cleaned.onnx" --passes dce,cse,dce --report "$out/report.json"
