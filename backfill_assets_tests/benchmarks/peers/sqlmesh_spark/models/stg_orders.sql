MODEL (
  name orders.stg_orders,
  kind INCREMENTAL_BY_TIME_RANGE (time_column event_date, batch_size BATCH_SIZE),
  table_format delta,
  partitioned_by event_date,
  audits (known_customers(day := event_date)),
);
WITH logged AS (
  SELECT *, TO_DATE(order_ts) AS event_date
  FROM orders.raw_orders
  WHERE log_date BETWEEN @start_date AND DATE_ADD(@end_date, 7)
), ranked AS (
  SELECT
    *,
    MIN(log_date) OVER (
      PARTITION BY order_id
      ORDER BY GREATEST(order_ts, ingestion_ts) DESC, log_date DESC, amount DESC
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS newer_date
  FROM logged
)
SELECT order_id, customer_id, order_ts, amount, ingestion_ts, log_date, event_date
FROM ranked
WHERE
  DATEDIFF(log_date, event_date) <= 7
  AND (newer_date IS NULL OR DATEDIFF(newer_date, event_date) > 7)
  AND event_date BETWEEN @start_date AND @end_date
