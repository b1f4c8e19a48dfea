rule draw:
    input:
        lambda wildcards: f"results/{STUDY.figures[wildcards.figure]['experiment']}/trials.parquet",
    output:
        pdf="results/figures/{figure}.pdf",
        svg=report(
            "results/figures/{figure}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
        png="results/figures/{figure}.png",
        caption="results/figures/{figure}.txt",
    log:
        "results/logs/figures/{figure}.log",
    resources:
        mem_mb=2000,
        runtime="10m",
    params:
        # Canonical text, so that a re-ordered config draws nothing again.
        declaration=lambda wildcards: json.dumps(
            STUDY.figures[wildcards.figure], sort_keys=True
        ),
        sources=sources_digest("draw.py"),
    message:
        "Drawing {wildcards.figure}"
    script:
        "../scripts/draw.py"
