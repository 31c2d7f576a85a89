"""Requests at once, of a verl config that does not say how many: verl's own default, which it tells its engines."""

import pytest
from click.testing import CliRunner

from sim.cli.main import main
from sim.preflight import verl
from sim.waste import read_verl

HEAD = "actor_rollout_ref:\n  rollout:\n    name: vllm\n    prompt_length: 64\n    response_length: 256\n"


@pytest.mark.parametrize(
    ("more", "requests"),
    [
        ("", verl.ROLLOUT_DEFAULTS["max_num_seqs"]),
        ("    max_num_seqs: 1024\n", 1024),
        ("    max_num_seqs: 16\n", 16),
        ("    max_num_batched_tokens: 128\n", 128),
    ],
    ids=["unset", "more", "fewer", "no more than a batch holds"],
)
def test_as_many_as_verl_tells_its_engines(tmp_path, more, requests):
    path = tmp_path / "verl.yaml"
    path.write_text(HEAD + more)
    assert read_verl.read(path, {}).engine["max_num_seqs"] == requests


def test_and_waste_says_where_they_are_from(tmp_path):
    path = tmp_path / "verl.yaml"
    path.write_text(HEAD)
    words = ["waste", "--from", str(path), "--count", "4", "--update-every", "200", "--policy", "pinned+keep"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "max_num_seqs 256 (unset: verl's default)" in result.output
    assert "max_num_seqs 256 ·" in result.output
