"""What all who answer requests have in common: how an API is declared, what a handler is told, what answers cost."""
