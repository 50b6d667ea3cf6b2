-- https://sqlmesh.readthedocs.io/en/stable/concepts/audits/
AUDIT (name known_customers);
SELECT @day
FROM @this_model
GROUP BY @day
HAVING AVG(IF(customer_id IS NULL, 1, 0)) > 0.9
