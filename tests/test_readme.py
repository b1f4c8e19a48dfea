"""Every command and every example of the README runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tree import ROOT, Tree

from kvsim.grid import load_config

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


COMMANDS = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


def test_the_two_commands_are_those_that_ci_and_the_makefile_know():
    assert [command for command in COMMANDS if command.startswith("make")] == ["make", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()
    assert re.search(
        r"^study:.*\n\t\$\(BIN\)/snakemake --cores", (ROOT / "Makefile").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("kvsim")])
def test_kvsim_commands(command: str, tmp_path: Path):
    (tmp_path / "config").symlink_to(ROOT / "config")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_snakemake_commands(tmp_path: Path):
    commands = [shlex.split(c)[1:] for c in COMMANDS if c.startswith("snakemake")]
    whole, small, report = commands
    tree = Tree.copied(tmp_path / "study")
    assert tree.planned(*whole)["simulate"] == 5
    small_config = (tree.folder / "config" / "small.yaml").read_text()
    tree.write("config/config.yaml", small_config)
    tree.run(*small)
    tree.run(*report)
    assert (tree.results / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("source", blocks("python"))
def test_python_examples(source: str, capsys: pytest.CaptureFixture[str]):
    exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_example_of_a_dimension(tmp_path: Path):
    (example,) = blocks("yaml")
    (tmp_path / "config.yaml").write_text(example)
    config = load_config([tmp_path / "config.yaml"])
    assert config.experiments["page-sizes"].dimensions == ("policy", "warm_steps", "page_size")
    assert len(config.experiments["page-sizes"].scenarios) == 2 * 3 * 7
