FIGURE_MODULES = ("figures", "style", "statistics", "tables", "outcomes", "scenario")


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
    params:
        declaration=lambda wildcards: STUDY.figures[wildcards.figure],
        declared=lambda wildcards: json.dumps(STUDY.figures[wildcards.figure], sort_keys=True),
        sources=sources_digest(FIGURE_MODULES, "draw.py"),
    log:
        "results/logs/figures/{figure}.log",
    resources:
        mem_mb=2000,
        runtime="10m",
    message:
        "Drawing {wildcards.figure}"
    script:
        "../scripts/draw.py"
