"""A script means what bash makes of it: its arithmetic, and the scripts that it calls, read alone or in a folder."""

import itertools
import shutil
import subprocess

import pytest

from sim.preflight import scan
from sim.preflight.shell_words import calculate

bash = shutil.which("bash")


@pytest.mark.skipif(bash is None, reason="arithmetic is held against bash, which is not here")
def test_division_and_remainder_are_bashs():
    numbers = (-9, -7, -2, -1, 1, 2, 3, 7, 8)
    sums = [f"{a} {op} {b}" for a, op, b in itertools.product((*numbers, 0), "/%", numbers)]
    sums += ["-7/2", "-7%2", "7/-2", "(-7)/2*2 + -7%2", "1 - -3/2"]
    script = "\n".join(f"echo $(({each}))" for each in sums)
    printed = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [calculate(each, {}) for each in sums] == [int(each) for each in printed]


CALLED = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=vllm \\\n"
    "  actor_rollout_ref.rollout.enable_chunked_prefill=${ENABLE_CHUNKED_PREFILL:-True}\n"
)


@pytest.mark.parametrize(
    ("caller", "called", "spelled"),
    [
        ("call.sh", "run.sh", "run.sh"),
        ("call.sh", "run.sh", "./run.sh"),
        ("recipes/call.sh", "recipes/run.sh", "run.sh"),
        ("recipes/call.sh", "recipes/deep/run.sh", "recipes/deep/run.sh"),
        ("recipes/deep/call.sh", "run.sh", "run.sh"),
    ],
)
def test_a_file_alone_follows_the_script_that_it_calls_as_a_folder_does(tmp_path, caller, called, spelled):
    for name, text in ((called, CALLED), (caller, f"export ENABLE_CHUNKED_PREFILL=False\nbash {spelled}\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (alone,) = scan.read_file(tmp_path / caller, {}).launches
    of_folder = scan.scan(tmp_path, {}).launches
    values = [launch.settings["enable_chunked_prefill"].value for launch in of_folder]
    assert alone.settings["enable_chunked_prefill"].value is False
    assert False in values


def test_a_script_that_calls_itself_or_one_that_is_not_there_ends(tmp_path):
    path = tmp_path / "call.sh"
    path.write_text(f"bash call.sh\nbash nowhere.sh\n{CALLED}")
    assert scan.read_file(path, {}).launches
