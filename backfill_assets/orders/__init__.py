"""The default tables: orders, their daily facts, and what follows from them."""
