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
    params:
        experiment=lambda wildcards: STUDY.experiments[wildcards.experiment],
        sources=sources_digest(("trials", "tables", "statistics"), "summarise.py"),
    log:
        "results/logs/{experiment}/summarise.log",
    resources:
        mem_mb=2000,
        runtime="30m",
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
    params:
        sources=sources_digest(("trials", "reference"), "print_reference.py"),
    log:
        "results/logs/reference.log",
    resources:
        mem_mb=1000,
        runtime="5m",
    message:
        "Printing the tables of the reference study"
    script:
        "../scripts/print_reference.py"
