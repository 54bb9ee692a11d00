"""What runs only on a desk: servers, simulated services and workers on this machine, and the demo."""
