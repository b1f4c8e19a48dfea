"""Check and join the files of an experiment's jobs, and summarise them, in one walk over the trials."""

import sys
from pathlib import Path

from kvsim.grid import grid_arguments
from kvsim.tables import summarise_all, write_summary
from kvsim.trials import TrialsError, about_job, collect, read_metadata, write_experiment

sys.stderr = Path(snakemake.log[0]).open("w")  # noqa: SIM115

experiment = snakemake.params.experiment
about = {"experiment": experiment.name} | about_job(grid_arguments(experiment.scenarios), experiment.seeds)
trials = Path(snakemake.output.trials)
try:
    summary = summarise_all(write_experiment(collect(experiment, trials.parents[1]), trials, about))
except TrialsError as error:
    sys.exit(str(error))
provenance = {name: str(value) for name, value in read_metadata(trials).items() if name != "scenarios"}
write_summary(summary, trials.parent, provenance=provenance)
