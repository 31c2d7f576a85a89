"""Reads CI workflow files (GitHub Actions): the `run` steps that launch, and the `env` maps that feed them."""

import re
import textwrap

import yaml

from sim.preflight import read_yaml
from sim.preflight.launch import UNKNOWN, Place, Reading, Word
from sim.preflight.read_shell import FindScript, Values, read_shell

_EXPRESSION = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)


def read_workflow(text: str, file: str, find: FindScript) -> Reading | None:
    """What the workflow's steps would launch, or None if the document is no workflow."""
    root = read_yaml.parse(text, file)
    jobs = _get(root, "jobs")
    if not isinstance(jobs, yaml.MappingNode):
        return None
    reading = Reading()
    lines = text.splitlines()
    of_workflow = _env(root, file)
    for _, job in jobs.value:
        of_job = of_workflow | _env(job, file)
        steps = _get(job, "steps")
        for step in steps.value if isinstance(steps, yaml.SequenceNode) else []:
            run = _get(step, "run")
            if isinstance(run, yaml.ScalarNode):
                script, line = _script(run, lines)
                read_shell(script, file, find, line=line, env=of_job | _env(step, file), reading=reading)
    return reading


def _get(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)


def _env(node: yaml.Node | None, file: str) -> dict[str, Values]:
    env = _get(node, "env")
    if not isinstance(env, yaml.MappingNode):
        return {}
    return {
        name.value: [Word(_EXPRESSION.sub(UNKNOWN, value.value), (Place(file, value.start_mark.line + 1),))]
        for name, value in env.value
        if isinstance(value, yaml.ScalarNode)
    }


def _script(run: yaml.ScalarNode, lines: list[str]) -> tuple[str, int]:
    """The step's script and the line it starts at; a block is taken from the file itself so that lines stay true."""
    first = run.start_mark.line
    if run.style not in ("|", ">"):
        return _EXPRESSION.sub("${{}}", run.value), first + 1
    body = textwrap.dedent("\n".join(lines[first + 1 : run.end_mark.line]))
    if run.style == ">":
        body = re.sub(r"(?<=\S)\n(?=\S)", " \\\n", body)
    return _EXPRESSION.sub("${{}}", body), first + 2
