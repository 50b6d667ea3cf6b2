"""`make bench-tpch`: TPC-H's receipts as a stream, the same steps with each tool."""

#: Days after the shipment within which a receipt counts.
WINDOW_DAYS = 14
