#!/usr/bin/env bash
# Compile a model ahead of time, and run the bundle with graphopt and with onnxruntime alone.
#     samples/13_compile.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" functions
show graphopt profile "$out/functions.onnx" --input-shape x:1x16x16,1x32x16 --runs 3 -o "$out/profile.json"

# Variants, weights, kernels and a manifest with checksums, in one folder.
show graphopt compile "$out/functions.onnx" -o "$out/functions.gopt" --profile "$out/profile.json" --fuser native
show graphopt inspect "$out/functions.gopt"

# The files, a session of each model, and the results.
show graphopt verify "$out/functions.gopt" --trusted
show graphopt verify "$out/functions.onnx" "$out/functions.gopt"
show graphopt run "$out/functions.gopt" --input-shape x:1x32x16 -v

# The same without graphopt: the script needs only onnxruntime and numpy.
show python3 -c "import numpy, sys; numpy.savez(sys.argv[1], x=numpy.ones((1, 32, 16), 'float32'))" "$out/inputs.npz"
show python3 "$samples/run_bundle.py" "$out/functions.gopt" "$out/inputs.npz" "$out/outputs.npz"
