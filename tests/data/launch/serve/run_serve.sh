#!/usr/bin/env bash
cat > /dev/null <<'EOF'
vllm serve model --max-model-len 32768 --max-num-batched-tokens 8192 --no-enable-chunked-prefill
EOF
vllm serve Qwen/Qwen2.5-7B-Instruct --max-model-len 32K --max-num-batched-tokens 8192
