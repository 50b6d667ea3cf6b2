"""Tables with memory, about the customers of the orders: to read and to copy."""
