#!/usr/bin/env bash
# The default itself is stale here; a branch turns it on for one backend only.
ENABLE_CHUNKED_PREFILL=${ENABLE_CHUNKED_PREFILL:-False}
if [ "${BACKEND:-fsdp}" = "megatron" ]; then
    ENABLE_CHUNKED_PREFILL=True
fi
COMMON="actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.enable_chunked_prefill=${ENABLE_CHUNKED_PREFILL}"
python3 -m verl.trainer.main_ppo $COMMON
