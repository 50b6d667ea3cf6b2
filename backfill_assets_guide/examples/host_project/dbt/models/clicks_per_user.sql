{{ config(
    materialized='incremental', incremental_strategy='microbatch',
    event_time='run_date', batch_size='day', begin='2024-01-01'
) }}
select run_date, clicks, users, clicks / nullif(users, 0) as clicks_per_user
from {{ source('gold', 'active_users_7d') }}
