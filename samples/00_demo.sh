#!/usr/bin/env bash
# The demo of `make demo`: optimize a model, show the changes of a pass, compare the result with the original.
#     samples/00_demo.sh [FOLDER TO WRITE TO]
. "$(dirname "${BASH_SOURCE[0]}")/walkthrough.bash"

# Limit piped output to 80 columns, by wrapping or shortening lines.
narrow() {
  if [ -t 1 ]; then cat; else python3 -c '
import sys, textwrap
for line in map(str.rstrip, sys.stdin):
    if sys.argv[1] == "wrap" or line.startswith("$"):
        indent = max(line.rfind("  ", 0, 60) + 2, 4)  # align with the last column
        print(textwrap.fill(line, 80, subsequent_indent=" " * indent, break_on_hyphens=False))
    else:
        print(line if len(line) <= 80 else line[:78].rstrip(" ,…") + " …")' "$1"; fi
}

say() { printf '\n# %s' "$1"; }

# An encoder as TorchScript exports it, with shape arithmetic everywhere, and a small convolutional network.
python3 "$samples/models.py" --out "$out" transformer cnn >/dev/null

say "Optimize a transformer. The result is written only if it agrees."
show graphopt optimize "$out/transformer.onnx" -o "$out/transformer.opt.onnx" | narrow wrap

say "See a pass at work: Pad, Conv and BatchNormalization become one Conv."
show graphopt dump "$out/cnn.onnx" --pass-by-pass --filter /stem |
  narrow shorten

say "Compare two models, on inputs made up for them."
show graphopt verify "$out/transformer.onnx" "$out/transformer.opt.onnx" | narrow wrap
