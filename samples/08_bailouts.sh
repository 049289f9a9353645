#!/usr/bin/env bash
# Exit a run in the middle of a loop, and continue in another graph.
#     samples/08_bailouts.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" control_flow

# The exit points behind values with data-dependent shapes; any other value can be named, too.
show graphopt bailout "$out/control_flow.onnx" --list

# Two parts: a prefix up to the value, in any iteration, and the continuation, with the remaining iterations.
show graphopt bailout "$out/control_flow.onnx" --at /loop_body/MatMul_output_0 -o "$out/rest.onnx" --prefix "$out/prefix.onnx"
show graphopt inspect "$out/prefix.onnx"
show graphopt inspect "$out/rest.onnx"

# One model that relies on a profile, and continues in the general model where a guard fails.
show graphopt profile "$out/control_flow.onnx" --input-shape x:4x8 --runs 2 -o "$out/profile.json"
show graphopt bailout "$out/control_flow.onnx" --profile "$out/profile.json" --all -o "$out/bailouts.onnx"
