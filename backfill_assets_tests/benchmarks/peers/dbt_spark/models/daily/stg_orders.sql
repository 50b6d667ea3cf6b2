{{ config(event_time='event_date', partition_by=['event_date']) }}
{#- A batch reads the days of the window as well: `render` leaves out dbt's own filter. -#}
with logged as (
    select *, to_date(order_ts) as event_date
    from {{ ref('raw_orders').render() }}
    {% if model.batch %}
    where log_date >= date'{{ model.batch.event_time_start.date() }}'
        and log_date < date_add(date'{{ model.batch.event_time_end.date() }}', 7)
    {% endif %}
),
ranked as (
    select
        *,
        min(log_date) over (
            partition by order_id
            order by greatest(order_ts, ingestion_ts) desc, log_date desc, amount desc
            rows between unbounded preceding and 1 preceding
        ) as newer_date
    from logged
)
select order_id, customer_id, order_ts, amount, ingestion_ts, log_date, event_date
from ranked
where datediff(log_date, event_date) <= 7
    and (newer_date is null or datediff(newer_date, event_date) > 7)
    {% if model.batch %}
    and event_date >= date'{{ model.batch.event_time_start.date() }}'
    and event_date < date'{{ model.batch.event_time_end.date() }}'
    {% endif %}
