#!/usr/bin/env bash
# Specialize a model for the inputs that really come, with the general model as the way out.
#     samples/06_specialize.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" functions

# What comes: requests of two lengths, made up here; --inputs FOLDER takes real ones, as .npz files.
show graphopt profile "$out/functions.onnx" --input-shape x:1x16x16,1x32x16 --runs 3 -o "$out/profile.json"

# One model for any onnxruntime: it checks by itself which variant its inputs are for.
show graphopt optimize "$out/functions.onnx" -o "$out/functions.guarded.onnx" -O3 --profile "$out/profile.json"
show graphopt inspect "$out/functions.guarded.onnx"
show graphopt verify "$out/functions.onnx" "$out/functions.guarded.onnx"

# A bundle: a model a variant, chosen on the host.
show graphopt optimize "$out/functions.onnx" -o "$out/functions.bundle" -O3 --profile "$out/profile.json" --emit bundle
show graphopt run "$out/functions.bundle" --input-shape x:1x32x16 -v
