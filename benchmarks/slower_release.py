"""Does the line of `baseline` name a release of a dependency that is slower?

    OMP_NUM_THREADS=1 python benchmarks/slower_release.py --to out/release    # four minutes

A loop trains on records that its data set validates with jsonschema, which takes longer since release 4.18 if a schema
has references. Both releases are installed below the directory. The loop runs six times with jsonschema 4.17.3, then
twice with 4.26.0. The command prints what each run said, and which `data` time it measured.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

OLD, NEW, RUNS = "4.17.3", "4.26.0", [0] * 6 + [1] * 2

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "properties": {"text": {"type": "string"}, "tags": {"type": "array", "items": {"$ref": "#/definitions/tag"}}},
    "required": ["text"],
    "definitions": {"tag": {"type": "string"}},
}
RECORD = {"text": "a record", "tags": [str(number) for number in range(6)]}


def train() -> None:
    """Train for 2,000 steps on validated records."""
    import jsonschema
    import torch

    from perf_callbacks.loop import measure

    validator = jsonschema.Draft7Validator(SCHEMA)

    class Records(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64 * 2_000

        def __getitem__(self, index: int) -> torch.Tensor:
            validator.validate(RECORD)
            return torch.full((256,), index % 7 / 7)

    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Records(), batch_size=64)
    with measure(model=model, optimizer=optimizer, loader=loader) as perf:
        for batch in perf.loader:
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def main(directory: Path) -> None:
    """Install both releases, and print what each run says."""
    places = []
    for version in (OLD, NEW):
        place = directory / f"jsonschema-{version}"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", place, f"jsonschema=={version}"]
        subprocess.run(command, check=True)
        places.append(place)
    for number, which in enumerate(RUNS):
        path = os.pathsep.join([str(places[which]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {
            "PYTHONPATH": path,
            "XDG_CACHE_HOME": str(directory / "cache"),
            "PERF_CALLBACKS_BASELINE": "auto",
            "PERF_CALLBACKS_OUTPUT_DIR": str(directory / f"records-{number}"),
        }
        command = [sys.executable, __file__, "--one", "--to", directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        said = [line for line in (done.stdout + done.stderr).splitlines() if "of this program" in line]
        print(f"jsonschema {(OLD, NEW)[which]}: {' '.join(said) or 'no line'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="directory of the runs")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        train()
    else:
        main(given.to.absolute())
