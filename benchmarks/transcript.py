"""The transcript in the README: the output of `graphopt optimize` for a sample.

python -m benchmarks.transcript                     print it
python -m benchmarks.transcript --docs README.md    insert it into the page
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks import doc_tables, measured_models, measured_tools

#: The output folder of `make demo`.
FOLDER = "build/demo"
ARGUMENTS = (f"{FOLDER}/transformer.onnx", "-o", f"{FOLDER}/transformer.opt.onnx")


def transcript() -> str:
    """The command and its output, run in a temporary folder."""
    environment = os.environ | {"PYTHONPATH": str(measured_tools.ROOT)}
    build = [
        sys.executable,
        str(measured_tools.ROOT / "samples" / "models.py"),
        "--out",
        FOLDER,
        "transformer",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(build, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        command = [*measured_tools.GRAPHOPT_COMMAND, *ARGUMENTS]
        done = subprocess.run(
            command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return f"```\n$ graphopt optimize {' '.join(ARGUMENTS)}\n{done.stdout.rstrip()}\n```"


def main() -> int:
    options = measured_models.arguments(__doc__ or "", models=False).parse_args()
    text = transcript()
    doc_tables.publish(options, "transcript", text, {"transcript": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
