"""What is to be told of a run, written in the statement that makes it so: one row for each subscription that wants it.

Without subscriptions it costs an index look-up. The rows hold ids and small facts; the body is made when it is sent.
"""


def told(topics: str, changed: str = "NULL::jsonb") -> str:
    """A CTE's text behind one named `owner`, the run's new row (id, workspace_id). `topics` is an SQL array of names,
    `changed` the columns that are told as they are now. An id is derived, so that the same thing is never told twice."""
    return f"""INSERT INTO deliveries (id, workspace_id, subscription_id, run_id, event, changed, status, attempts, by_hand,
                         next_attempt_at, due_at, created_at)
  SELECT 'dlv_' || md5(s.id || owner.id || topic || owner.epoch), owner.workspace_id, s.id, owner.id, topic, {changed},
         'pending', 0, false, now(), now(), now()
    FROM owner JOIN subscriptions AS s ON s.workspace_id = owner.workspace_id AND s.active
    CROSS JOIN unnest({topics}) AS topic
   WHERE topic = ANY(s.events)
  ON CONFLICT (id) DO NOTHING RETURNING true"""
