"""How calls reach servers and balancer."""
