rule summarise:
    input:
        trials_of,
    output:
        trials="results/{experiment}/trials.parquet",
        parquet="results/{experiment}/summary.parquet",
        csv=report(
            "results/{experiment}/summary.csv",
            caption="../report/summary.rst",
            category="Tables",
            labels={"experiment": "{experiment}"},
        ),
        markdown="results/{experiment}/summary.md",
        latex="results/{experiment}/summary.tex",
    log:
        "results/logs/{experiment}/summarise.log",
    resources:
        mem_mb=2000,
        runtime="30m",
    params:
        experiment=lambda wildcards: STUDY.experiments[wildcards.experiment],
        sources=sources_digest("summarise.py"),
    message:
        "Summarising {wildcards.experiment}"
    script:
        "../scripts/summarise.py"


rule print_reference:
    input:
        expand("results/{experiment}/trials.parquet", experiment=reference.REFERENCE),
    output:
        report(
            "results/reference/printed.txt",
            caption="../report/printed.rst",
            category="Tables",
            labels={"experiment": "reference tables A to D"},
        ),
    log:
        "results/logs/reference.log",
    resources:
        mem_mb=1000,
        runtime="5m",
    params:
        sources=sources_digest("print_reference.py"),
    message:
        "Printing the tables of the reference study"
    script:
        "../scripts/print_reference.py"
