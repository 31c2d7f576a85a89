"""How calls reach servers and balancer: handles, copies or shared objects, delays."""
