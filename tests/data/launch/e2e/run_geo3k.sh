#!/usr/bin/env bash
# Feeds the flag through the environment, in front of the command.
ray stop --force
ENGINE=vllm ENABLE_CHUNKED_PREFILL=False \
    MODEL_ID=Qwen/Qwen2.5-VL-3B-Instruct \
    bash e2e/run_function_reward.sh
