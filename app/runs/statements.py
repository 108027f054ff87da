"""The SQL of how runs begin, are owned, wait and are carried on. Each statement is one round trip and one transaction. What
an owner writes down step by step stands in `step_statements.py`.
"""

_RUN_FIELDS = """id, workspace_id, session_id, agent_id, parent_run_id, tenant_type, tenant_id, subject_type, subject_id,
 member_type, member_id, model, metadata, request, depth, join_key, vault"""

_NEW_RUN = """(SELECT * FROM jsonb_to_record($1) AS run(id text, workspace_id text, session_id text, agent_id text,
 parent_run_id text, tenant_type text, tenant_id text, subject_type text, subject_id text, member_type text,
 member_id text, model text, metadata jsonb, request jsonb, depth int, join_key text, vault text))"""

_INSERT_RUN = f"""INSERT INTO runs ({_RUN_FIELDS}, status, claim, epoch, lease_expires_at, created_at, started_at,
 claimed_at, worked_seconds, iterations, tool_calls, input_tokens, output_tokens, cached_tokens, reasoning_tokens,
 reserved_seq)"""

# $1 run, $2 claim, $3 lease seconds, $4 created_at, $5 reserved seq
START_ALONE = f"""
{_INSERT_RUN}
SELECT {_RUN_FIELDS}, 'running', $2, 1, now() + make_interval(secs => $3), $4, $4, $4, 0, 0, 0, 0, 0, 0, 0, $5
  FROM {_NEW_RUN} AS new
RETURNING *
"""

# the same for a run that its parent's call starts; no row: it was started before
START_CHILD = START_ALONE.replace("RETURNING *", "ON CONFLICT (id) DO NOTHING RETURNING *")

# $1 run, $2 claim, $3 lease seconds, $4 created_at, $5 session_id, $6 message (JSON) or NULL, $7 reserved seq; no row: the
# session is busy
START_IN_SESSION = f"""
WITH free AS (
  UPDATE sessions SET next_position = next_position + ($6::jsonb IS NOT NULL)::int, updated_at = $4
   WHERE id = $5 AND NOT EXISTS (
     SELECT 1 FROM runs WHERE session_id = $5 AND status IN ('queued', 'running', 'waiting'))
  RETURNING next_position - ($6::jsonb IS NOT NULL)::int AS position),
started AS (
  {_INSERT_RUN}
  SELECT {_RUN_FIELDS}, 'running', $2, 1, now() + make_interval(secs => $3), $4, $4, $4, 0, 0, 0, 0, 0, 0, 0, $7
    FROM {_NEW_RUN} AS new, free
  RETURNING *),
asked AS (
  INSERT INTO messages (id, session_id, run_id, position, role, content, parts, tokens, created_at)
  SELECT m.id, $5, started.id, free.position, 'user', m.content, m.parts, m.tokens, $4
    FROM started, free, jsonb_to_record($6::jsonb) AS m(id text, content text, parts jsonb, tokens int)
   WHERE $6::jsonb IS NOT NULL)
SELECT started.*, free.position AS input_position FROM started, free
"""

# $1 run, $2 created_at, $3 reserved seq
QUEUE = f"""
{_INSERT_RUN}
SELECT {_RUN_FIELDS}, 'queued', NULL, 0, NULL, $2, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, $3 FROM {_NEW_RUN} AS new
RETURNING *
"""

_IS_JOINABLE = "status = 'queued' AND claim IS NULL AND cancel_requested_at IS NULL AND join_key IS NOT NULL"

# $1 run, $2 created_at, $3 wake_at, $4 reserved seq: a run that starts later; no row: one of this join_key is queued
QUEUE_UNTIL = f"""
{_INSERT_RUN.removesuffix(")")}, wake_at)
SELECT {_RUN_FIELDS}, 'queued', NULL, 0, NULL, $2, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, $4, $3 FROM {_NEW_RUN} AS new
ON CONFLICT (join_key) WHERE {_IS_JOINABLE} DO NOTHING
RETURNING *
"""

# $1 run, $2 quiet seconds: the queued run of this join_key takes what the new one has, and waits for quiet once more, up to
# ten times from its beginning; no row: there is none, or it was claimed
JOIN = f"""
UPDATE runs SET request = new.request, model = new.model, metadata = new.metadata, depth = greatest(runs.depth, new.depth),
       member_type = new.member_type, member_id = new.member_id, vault = new.vault,
       wake_at = least(now() + make_interval(secs => $2), runs.created_at + make_interval(secs => 10 * $2))
  FROM {_NEW_RUN} AS new
 WHERE runs.join_key = new.join_key AND {_IS_JOINABLE.replace("join_key", "runs.join_key")}
RETURNING runs.*
"""

# $1 session_id, $2 run_id, $3 message (JSON): the input of a queued run, when it starts
ASK = """
WITH place AS (
  UPDATE sessions SET next_position = next_position + 1, updated_at = now()
   WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM messages WHERE id = $3::jsonb->>'id')
  RETURNING next_position - 1 AS position)
INSERT INTO messages (id, session_id, run_id, position, role, content, parts, tokens, created_at)
SELECT m.id, $1, $2, place.position, 'user', m.content, m.parts, m.tokens, now()
  FROM place, jsonb_to_record($3::jsonb) AS m(id text, content text, parts jsonb, tokens int)
"""

# what nobody works on: a running one without a lease, a waiting one whose time is up or whose end was asked for, a
# queued one whose turn it is
_FREE = """(
  (status = 'running' AND (lease_expires_at IS NULL OR lease_expires_at < now()))
  OR (status = 'waiting' AND (wake_at < now() OR cancel_requested_at IS NOT NULL)
      AND (claim IS NULL OR lease_expires_at < now()))
  OR (status = 'queued' AND (wake_at IS NULL OR wake_at <= now()) AND (session_id IS NULL OR NOT EXISTS (
    SELECT 1 FROM runs AS other WHERE other.session_id = runs.session_id AND other.id <> runs.id
       AND (other.status IN ('running', 'waiting') OR (other.status = 'queued' AND other.id < runs.id))))))"""

# $1 run_id, $2 claim, $3 lease seconds: take a run that nobody works on
CLAIM = f"""
UPDATE runs SET status = 'running', claim = $2, epoch = epoch + 1, lease_expires_at = now() + make_interval(secs => $3),
       started_at = coalesce(started_at, now()), pending = NULL, wake_at = NULL,
       answered_epoch = CASE WHEN status = 'waiting' THEN epoch ELSE answered_epoch END,
       worked_seconds = worked_seconds + CASE WHEN status = 'running' AND claimed_at IS NOT NULL
         THEN extract(epoch FROM now() - claimed_at)::float8 ELSE 0 END,
       claimed_at = now()
 WHERE id = $1 AND {_FREE}
RETURNING *
"""

# $1 how many at most
ABANDONED = f"SELECT id FROM runs WHERE status IN ('queued', 'running', 'waiting') AND {_FREE} ORDER BY id LIMIT $1"

# $1 run ids, $2 claims, $3 lease seconds: renew; the rows that come back are still owned
RENEW = """
UPDATE runs SET lease_expires_at = now() + make_interval(secs => $3)
  FROM unnest($1::text[], $2::text[]) AS mine(id, claim)
 WHERE runs.id = mine.id AND runs.claim = mine.claim AND runs.status = 'running'
RETURNING runs.id
"""

# $1 run_id, $2 claim, $3 seq: events up to it may be shown
RESERVE = """
UPDATE runs SET reserved_seq = greatest(reserved_seq, $3) WHERE id = $1 AND claim = $2 AND status = 'running' RETURNING id
"""

# $1 run ids
OWNERS = "SELECT id, status, claim FROM runs WHERE id = ANY($1)"

# $1 run_id, $2 claim: let go, so that any process may carry on at once
LET_GO = "UPDATE runs SET claim = NULL, lease_expires_at = NULL WHERE id = $1 AND claim = $2 AND status = 'running'"

# $1 run ids: those whose end was asked for, or that are gone
CANCEL_REQUESTED = """
SELECT mine.id, runs.id IS NULL AS gone FROM unnest($1::text[]) AS mine(id) LEFT JOIN runs ON runs.id = mine.id
 WHERE runs.id IS NULL OR runs.cancel_requested_at IS NOT NULL
"""

# $1 run_id: ask for the end of an active run; what comes back is whether somebody is working on it
REQUEST_CANCEL = """
UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, now())
 WHERE id = $1 AND status IN ('queued', 'running', 'waiting')
RETURNING status, claim IS NOT NULL AND lease_expires_at > now() AS owned
"""

# $1 run_id, $2 claim, $3 lease seconds: own a run in order to end it, whatever it was doing, unless a living process owns it
CLAIM_TO_CANCEL = """
UPDATE runs SET claim = $2, epoch = epoch + 1, lease_expires_at = now() + make_interval(secs => $3)
 WHERE id = $1 AND status IN ('queued', 'running', 'waiting')
   AND (status <> 'running' OR claim IS NULL OR lease_expires_at < now())
RETURNING *
"""

# $1 run_id, $2 resolutions by call: keep what came for calls that wait
RESOLVE = """
UPDATE tool_calls SET resolution = given.value
  FROM jsonb_each($2::jsonb) AS given WHERE tool_calls.run_id = $1 AND tool_calls.id = given.key
"""

# $1 run_id, $2 what it still waits for
STILL_PENDING = "UPDATE runs SET pending = $2 WHERE id = $1 RETURNING *"

# $1 run_id, $2 what it waits for, now that this was looked at: it wakes when the first of it runs out
WAIT = """
UPDATE runs SET pending = $2, wake_at = (
    SELECT min(expires_at) FROM tool_calls WHERE run_id = $1 AND answered_at IS NULL
       AND coalesce(resolution->>'kind', '') NOT IN ('result', 'error'))
 WHERE id = $1
"""

# $1 run_id: it has what it waited for; whoever claims it carries on
RELEASE = """
UPDATE runs SET status = 'running', claim = NULL, lease_expires_at = NULL, claimed_at = NULL, pending = NULL, wake_at = NULL,
       answered_epoch = epoch
 WHERE id = $1 RETURNING *
"""
