"""Records what the installed vLLM answers, for machines without it: `python tests/conformance/record_startup.py`.

Writes tests/data/startup/vllm-VERSION.json: random draws like those of test_startup_live.py, with vLLM's verdicts.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import test_startup_live as live
import vllm
from msgspec import UNSET

DRAWS = 300


def main() -> None:
    draw = random.Random(15185)
    root = Path(tempfile.mkdtemp())
    for name, config in live.MODELS.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    cases = []
    for _ in range(DRAWS):
        flags = {name: draw.choice(values) for name, values in live.POOL.items() if draw.random() < 0.34}
        flags = {name: value for name, value in flags.items() if value is not UNSET}
        model, usage = draw.choice(list(live.MODELS)), draw.choice(list(live.USAGES))
        held, _ = live.real(flags, root / model, usage)
        cases.append({"flags": flags, "model": model, "usage": usage, "held": held})
    record = {"vllm": vllm.__version__, "models": live.MODELS}
    lines = ",\n".join(json.dumps(case) for case in cases)
    target = Path(__file__).parent.parent / "data" / "startup" / f"vllm-{vllm.__version__}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(record)[:-1] + ', "cases": [\n' + lines + "\n]}\n")
    print(f"{target}: {len(cases)} cases, {sum(case['held'] is None for case in cases)} refused")


if __name__ == "__main__":
    main()
