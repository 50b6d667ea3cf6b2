MODEL (
  name orders.raw_orders,
  kind INCREMENTAL_BY_TIME_RANGE (time_column log_date, batch_size BATCH_SIZE),
  table_format delta,
  partitioned_by log_date,
  audits (known_customers(day := log_date)),
);
SELECT
  line.order_id, line.customer_id, line.order_ts, line.amount, line.ingestion_ts,
  arrival_date AS log_date
FROM (
  SELECT
    arrival_date,
    FROM_JSON(
      value,
      'order_id string, customer_id string, order_ts timestamp, amount decimal(18,2), ingestion_ts timestamp'
    ) AS line
  FROM landing.landed_lines
  WHERE arrival_date BETWEEN @start_date AND @end_date
)
WHERE
  line.order_id IS NOT NULL AND line.order_ts IS NOT NULL
  AND line.amount IS NOT NULL AND line.ingestion_ts IS NOT NULL
