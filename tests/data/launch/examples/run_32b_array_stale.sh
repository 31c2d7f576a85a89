#!/usr/bin/env bash
# Settings kept in arrays, as longer examples do.
set -xeuo pipefail
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
offload=True

DATA=(
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}   # a comment with a stray ' in it
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.enable_chunked_prefill=False
    actor_rollout_ref.rollout.max_num_batched_tokens=$((max_prompt_length + max_response_length - 1))
    actor_rollout_ref.rollout.max_model_len=$((max_prompt_length + max_response_length))
)

EXTRA=(
)
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ] && { [ "${DEVICE:-gpu}" = gpu ] || [ "${DEVICE:-gpu}" = npu ]; }; then
    LAUNCH=(uv run --frozen python3)
    EXTRA+=(actor_rollout_ref.rollout.gpu_memory_utilization=0.7)
fi
host=$(python3 - <<'PY'
print("a (host)")
PY
)

"${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" "${ROLLOUT[@]}" "${EXTRA[@]}" \
    actor_rollout_ref.actor.fsdp_config.param_offload=${offload} "$@"
