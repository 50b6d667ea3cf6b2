"""`make bench-tpch`: TPC-H's receipts as a stream, the same steps with each tool."""
