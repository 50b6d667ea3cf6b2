"""Tables with memory: customers as they were, and what is made of them."""
