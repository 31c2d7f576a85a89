#!/usr/bin/env bash
set -xeuo pipefail
NUM_GPUS=${NUM_GPUS:-8}
MODEL_ID=${MODEL_ID:-Qwen/Qwen2.5-0.5B}
ENGINE=${ENGINE:-vllm}
ENABLE_CHUNKED_PREFILL=${ENABLE_CHUNKED_PREFILL:-True} # once needed for vLLM issue 15185
VAL_BEFORE_TRAIN=${VAL_BEFORE_TRAIN:-False}

exp_name="$(basename "${MODEL_ID,,}")-minimal"
python3 -m verl.trainer.main_ppo \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.rollout.name="${ENGINE}" \
    actor_rollout_ref.rollout.enable_chunked_prefill="${ENABLE_CHUNKED_PREFILL}" \
    trainer.val_before_train="${VAL_BEFORE_TRAIN}" \
    trainer.experiment_name="${exp_name}" $@
