"""Write the sample models to a folder, with a manifest of their inputs.

python samples/models.py --out build/samples               all of them
python samples/models.py --out build/samples transformer   one
python samples/models.py --list                            list them
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from zoo import SAMPLES


def write(name: str, folder: Path) -> Path:
    """Build one sample and write it to `folder`/`name`.onnx, deterministically."""
    path = folder / f"{name}.onnx"
    path.write_bytes(SAMPLES[name].build().SerializeToString(deterministic=True))
    return path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="samples to write (default: all)")
    parser.add_argument("--out", type=Path, default=Path("build/samples"), help="the folder to write to")
    parser.add_argument("--list", action="store_true", help="list the samples, and write nothing")
    options = parser.parse_args(arguments)

    if options.list:
        for name, sample in SAMPLES.items():
            print(f"{name:14}{sample.about}")
        return 0
    names = options.names or list(SAMPLES)
    if unknown := [name for name in names if name not in SAMPLES]:
        parser.error(f"no sample is called {unknown[0]!r}; samples: {', '.join(SAMPLES)}")

    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = write(name, options.out)
        print(f"wrote {path} ({path.stat().st_size:,} bytes)")
    manifest = [SAMPLES[name].manifest_entry(name) for name in names]
    (options.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
