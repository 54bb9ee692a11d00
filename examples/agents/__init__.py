"""Agents of services as they are: a card processor, a cloud provider, a partner. `SAS_AGENTS=examples.agents`"""
