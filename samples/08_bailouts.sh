#!/usr/bin/env bash
# Leave a run in the middle of a loop, and let another graph do the rest.
#     samples/08_bailouts.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" control_flow

# Where a shape depends on data, so that it has to be checked there; any other value can be named, too.
show graphopt bailout "$out/control_flow.onnx" --list

# Two parts: what runs up to the value in its second trip, say, and what does the rest, the trips that are left included.
show graphopt bailout "$out/control_flow.onnx" --at /loop_body/MatMul_output_0 -o "$out/rest.onnx" --prefix "$out/prefix.onnx"
show graphopt inspect "$out/prefix.onnx"
show graphopt inspect "$out/rest.onnx"

# One model that relies on what was seen, and does the rest generally from where that is not so.
show graphopt profile "$out/control_flow.onnx" --input-shape x:4x8 --runs 2 -o "$out/profile.json"
show graphopt bailout "$out/control_flow.onnx" --profile "$out/profile.json" --all -o "$out/bailouts.onnx"
