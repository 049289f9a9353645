#!/usr/bin/env bash
# Specialize a model for the inputs that actually occur, with the general model as fallback.
#     samples/06_specialize.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" functions

# Profile requests of two lengths, generated here; --inputs FOLDER uses recorded ones, as .npz files.
show graphopt profile "$out/functions.onnx" --input-shape x:1x16x16,1x32x16 --runs 3 -o "$out/profile.json"

# One model for any onnxruntime, which selects the variant by guards in the graph.
show graphopt optimize "$out/functions.onnx" -o "$out/functions.guarded.onnx" -O3 --profile "$out/profile.json"
show graphopt inspect "$out/functions.guarded.onnx"
show graphopt verify "$out/functions.onnx" "$out/functions.guarded.onnx"

# A bundle: one model per variant, selected on the host.
show graphopt optimize "$out/functions.onnx" -o "$out/functions.bundle" -O3 --profile "$out/profile.json" --emit bundle
show graphopt run "$out/functions.bundle" --input-shape x:1x32x16 -v
