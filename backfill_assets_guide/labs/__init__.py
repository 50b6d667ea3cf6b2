"""Labs: small experiments that show what goes wrong otherwise, on tables of their own."""
