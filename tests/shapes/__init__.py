"""Stand-ins for services as they are, for the Agents of `examples/agents`, and a definition that uses one."""
