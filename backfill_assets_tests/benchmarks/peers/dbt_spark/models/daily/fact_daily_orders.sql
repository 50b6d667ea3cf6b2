{{ config(event_time='run_date', partition_by=['run_date']) }}
select
    coalesce(customer_id, 'unknown') as customer_id,
    count(*) as orders,
    sum(amount) as revenue,
    event_date as run_date
from {{ ref('stg_orders') }}
group by 1, 4
