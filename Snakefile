"""From a config to trials, tables and figures: ``snakemake --cores 16``."""

from snakemake.utils import min_version

min_version("9.10")


container: "docker://python:3.11"


include: "workflow/rules/common.smk"
include: "workflow/rules/resume.smk"
include: "workflow/rules/simulate.smk"
include: "workflow/rules/summarise.smk"
include: "workflow/rules/figures.smk"


wildcard_constraints:
    experiment="[a-z0-9-]+",
    cell="[^/]+",
    block=r"\d+-\d+",
    figure="[a-z0-9-]+",


rule all:
    default_target: True
    input:
        expand("results/{experiment}/summary.md", experiment=STUDY.experiments),
        expand("results/figures/{figure}.pdf", figure=STUDY.figures),
        "results/reference/printed.txt" if reference.covers(STUDY.experiments) else [],


localrules:
    all,


onstart:
    begin_run()
