"""Draw a figure that the config declares."""

import json
import sys
from pathlib import Path

from kvsim.figures import draw, save
from kvsim.trials import read_metadata, read_trials

sys.stderr = Path(snakemake.log[0]).open("w")  # noqa: SIM115

trials = snakemake.input[0]
provenance = {name: str(value) for name, value in read_metadata(trials).items() if name != "scenarios"}
drawing = draw(json.loads(snakemake.params.declaration), read_trials(trials))
save(drawing, Path(snakemake.output.pdf).with_suffix(""), provenance=provenance)
