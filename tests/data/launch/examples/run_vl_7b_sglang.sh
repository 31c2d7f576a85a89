#!/usr/bin/env bash
# SGLang never sees the flag: verl hands it neither of the two settings.
python3 -m verl.trainer.main_ppo \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.enable_chunked_prefill=False
