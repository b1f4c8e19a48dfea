"""Print the reference study's tables from the trials of this run."""

import sys
from pathlib import Path

from kvsim.files import write_text
from kvsim.reference import printed
from kvsim.trials import read_trials

sys.stderr = Path(snakemake.log[0]).open("w")  # noqa: SIM115

trials = {Path(path).parent.name: read_trials(path) for path in snakemake.input}
write_text(snakemake.output[0], printed(trials))
