from backfill_assets.sample.generator import generate
from backfill_assets_tests.pipeline import *
import time, cProfile, pstats
def test_sample(pipeline):
    (pipeline.landing/"orders").rmdir(); generate(pipeline.landing, start=START, days=31, orders_per_day=60, seed=3)
    for a,b in ((1,31),(1,31)):
        t=time.time(); p=cProfile.Profile(); p.enable()
        r=pipeline.run(a,b,["raw_orders","raw_orders_rejected"]); p.disable()
        print("run",a,b,round(time.time()-t,1))
    pstats.Stats(p).sort_stats("cumtime").print_stats(r"(io_manager|landing|raw|audit|classic/readwriter|classic/dataframe|sql_event_log)", 25)
