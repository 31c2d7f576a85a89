"""How a server turns a request into a grant."""
