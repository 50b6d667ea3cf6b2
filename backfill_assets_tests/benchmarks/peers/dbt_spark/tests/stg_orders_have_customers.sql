-- Days on which too many orders have no customer.
-- https://docs.getdbt.com/docs/build/data-tests#singular-data-tests
select event_date
from {{ ref('stg_orders').render() }}
group by event_date
having avg(if(customer_id is null, 1, 0)) > 0.9
