#!/usr/bin/env bash
export ENGINE=sglang
export ENABLE_CHUNKED_PREFILL=False
bash e2e/run_function_reward.sh
