#!/usr/bin/env bash
# Compile kernels for operators that onnxruntime computes in several passes over memory.
#     samples/11_native_kernels.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

show python3 "$samples/models.py" --out "$out" transformer

# Groups of nodes that can be computed in one loop nest, and the memory traffic that each saves.
show graphopt partition "$out/transformer.onnx" --policy fusion

# The model with a function per group, and the library with their kernels; verified with and without the library.
show graphopt optimize "$out/transformer.onnx" -o "$out/transformer.native.onnx" --fuser native
show graphopt kernels "$out/transformer.native.onnx"

# The library is for other programs: graphopt builds kernels from the model, and does not load that file.
show graphopt run "$out/transformer.native.onnx"
show graphopt run "$out/transformer.native.onnx" --no-kernels

library="$out/transformer.native.kernels.so"
if [ -f "$library" ]; then
  show python3 - "$out/transformer.native.onnx" "$library" <<'PYTHON'
import sys

import numpy as np
import onnxruntime

model, library = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
feeds = {"input_ids": np.ones((2, 8), np.int64), "attention_mask": np.ones((2, 8), np.int64)}
providers = ["CPUExecutionProvider"]
with_kernels = onnxruntime.InferenceSession(model, options, providers=providers).run(None, feeds)
without = onnxruntime.InferenceSession(model, providers=providers).run(None, feeds)
print("largest difference", max(np.abs(a - b).max() for a, b in zip(with_kernels, without)))
PYTHON
else
  echo "no library was built, because there is no C compiler: onnxruntime runs the nodes"
fi
