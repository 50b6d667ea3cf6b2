"""What is wrong with a deployment, looked for part by part; nothing is written or started."""
