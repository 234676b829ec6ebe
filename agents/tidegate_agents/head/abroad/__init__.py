"""Moving subscribers between clusters: candidates, the head they leave, the head they arrive at."""
