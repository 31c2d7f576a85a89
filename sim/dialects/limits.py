"""The spellings of a limit in sampling params."""

MAX_TOKENS_KEY = "max_tokens"
"""vLLM's, and the OpenAI API's."""

MAX_NEW_TOKENS_KEY = "max_new_tokens"
"""SGLang's, and Hugging Face's."""

LIMIT_KEYS = (MAX_TOKENS_KEY, MAX_NEW_TOKENS_KEY)
