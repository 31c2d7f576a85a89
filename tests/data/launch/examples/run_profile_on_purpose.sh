#!/usr/bin/env bash
# Chunked prefill is off on purpose, for a clean trace: max_model_len is explicit and one step holds it.
max_prompt_length=1024
max_response_length=2048
MAX_MODEL_LEN=$((max_prompt_length + max_response_length))

python3 -m verl.trainer.main_ppo \
    data.max_prompt_length=$max_prompt_length data.max_response_length=$max_response_length \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.max_model_len="${MAX_MODEL_LEN}" \
    actor_rollout_ref.rollout.enable_chunked_prefill=False
