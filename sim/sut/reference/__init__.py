"""The built-in known-good client, balancer and agent loop, and the client with the bug of verl PR 7207."""
