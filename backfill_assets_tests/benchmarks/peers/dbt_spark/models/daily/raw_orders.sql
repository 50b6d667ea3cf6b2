{{ config(event_time='log_date', partition_by=['log_date']) }}
select
    line.order_id, line.customer_id, line.order_ts, line.amount, line.ingestion_ts,
    arrival_date as log_date
from (
    select
        arrival_date,
        from_json(
            value,
            'order_id string, customer_id string, order_ts timestamp, amount decimal(18,2), ingestion_ts timestamp'
        ) as line
    from landed_lines
    {% if model.batch %}
    where arrival_date >= date'{{ model.batch.event_time_start.date() }}'
        and arrival_date < date'{{ model.batch.event_time_end.date() }}'
    {% endif %}
)
where line.order_id is not null and line.order_ts is not null
    and line.amount is not null and line.ingestion_ts is not null
