"""The crash matrix: scenarios, the cases that they make, and what runs them."""
