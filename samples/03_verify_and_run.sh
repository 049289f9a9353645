#!/usr/bin/env bash
# Compare models and run them through onnxruntime.
#     samples/03_verify_and_run.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" transformer control_flow cnn
show graphopt optimize "$out/control_flow.onnx" -o "$out/control_flow.opt.onnx" --no-verify

# Inputs, outputs, and operators.
show graphopt inspect "$out/control_flow.opt.onnx"

# Equal on several sizes of every dynamic dim, with onnxruntime's optimizations off and on.
show graphopt verify "$out/control_flow.onnx" "$out/control_flow.opt.onnx"

# Generated inputs of a given shape, the same for the same seed …
show graphopt run "$out/transformer.onnx" --input-shape input_ids:2x7 --input-shape attention_mask:2x7 --seed 1

# … or inputs of your own.
python3 -c 'import sys, numpy; numpy.save(sys.argv[1], numpy.array(3))' "$out/n.npy"
show graphopt run "$out/control_flow.opt.onnx" --input "n:$out/n.npy" --input-shape x:2x8

# Different models are detected: exit status 1, as expected.
status=0
show graphopt verify "$out/control_flow.onnx" "$out/cnn.onnx" || status=$?
echo "exit status $status: these two models are meant to differ"
