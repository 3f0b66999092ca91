"""What runs in threads of its own, so that no page waits long.

root_watcher.py     reads all topics of the root; a page shows what was read so far
topic_plans.py      computes plans of topics; a page shows that its plan is being computed, and then the plan
running_changes.py  makes one change of the root at a time; a page shows that it runs, and then its outcome
defects.py          reports defects of the server, without contents of records
"""
