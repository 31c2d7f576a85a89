#!/usr/bin/env bash
LEN=32K
vllm serve Qwen/Qwen2.5-7B-Instruct \
    --max-model-len $LEN \
    --max-num-batched-tokens 8192 \
    --no-enable-chunked-prefill \
    --port 8000 2>&1 | tee serve.log
