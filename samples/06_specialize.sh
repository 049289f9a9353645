#!/usr/bin/env bash
# Specialize a model for the inputs that really come, with the general model as the way out.
#     samples/06_specialize.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" transformer

# What comes: requests of two lengths, made up here; --inputs FOLDER takes real ones, as .npz files.
show graphopt profile "$out/transformer.onnx" --input-shape input_ids:1x16,1x32 --input-shape attention_mask:1x16,1x32 \
    --runs 3 -o "$out/profile.json"

# One model for any onnxruntime: it checks by itself which variant its inputs are for.
show graphopt optimize "$out/transformer.onnx" -o "$out/transformer.guarded.onnx" -O3 --profile "$out/profile.json"
show graphopt inspect "$out/transformer.guarded.onnx"
show graphopt verify "$out/transformer.onnx" "$out/transformer.guarded.onnx"

# A bundle: a model a variant, chosen on the host.
show graphopt optimize "$out/transformer.onnx" -o "$out/transformer.bundle" -O3 --profile "$out/profile.json" --emit bundle
show graphopt run "$out/transformer.bundle" --input-shape input_ids:1,32 --input-shape attention_mask:1,32 -v
