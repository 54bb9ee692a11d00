"""`starter.py demo`: what happens in it, what is shown meanwhile, and what is checked in the end."""
