"""verl: its released client and load balancer, unmodified, and everything in rollcage that knows its names."""
