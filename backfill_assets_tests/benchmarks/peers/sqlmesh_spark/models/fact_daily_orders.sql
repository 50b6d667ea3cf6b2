MODEL (
  name orders.fact_daily_orders,
  kind INCREMENTAL_BY_TIME_RANGE (time_column run_date, batch_size BATCH_SIZE),
  table_format delta,
  partitioned_by run_date,
);
SELECT
  COALESCE(customer_id, 'unknown') AS customer_id,
  COUNT(*) AS orders,
  SUM(amount) AS revenue,
  event_date AS run_date
FROM orders.stg_orders
WHERE event_date BETWEEN @start_date AND @end_date
GROUP BY 1, 4
