"""The SQL of an owner's steps. Each statement is one round trip and one transaction.

It names the owner's claim in the CTE `owner`, which locks the run's row: with another claim the CTE is empty, and with it
everything that hangs on it. Events and other lists come as JSON arrays.
"""

from app.subscriptions.outbox import told
from app.usage.recording import recorded

_KEEP_EVENTS = """INSERT INTO run_events (run_id, seq, type, at, ref, data)
  SELECT owner.id, e.seq, e.type, e.at, e.ref, e.data
    FROM owner, jsonb_to_recordset({events}) AS e(seq int, type text, at text, ref text, data jsonb)
  ON CONFLICT (run_id, seq) DO NOTHING"""

# $1 run_id, $2 claim, $3 iteration, $4 reply, $5 model_calls, $6 message_id, $7 content, $8 shown tool calls or NULL,
# $9 calls, $10 usage, $11 persist, $12 number of calls, $13 created_at, $14 events, $15 reserved seq, $16 tokens of the
# content
REPLY = f"""
WITH owner AS (
  UPDATE runs SET iterations = $3, tool_calls = tool_calls + $12, reserved_seq = greatest(reserved_seq, $15),
         input_tokens = input_tokens + ($10::jsonb->>'input_tokens')::bigint,
         output_tokens = output_tokens + ($10::jsonb->>'output_tokens')::bigint,
         cached_tokens = cached_tokens + ($10::jsonb->>'cached_tokens')::bigint,
         reasoning_tokens = reasoning_tokens + ($10::jsonb->>'reasoning_tokens')::bigint
   WHERE id = $1 AND claim = $2 AND status = 'running'
  RETURNING id, session_id, workspace_id, tenant_type, tenant_id, agent_id),
place AS (
  UPDATE sessions SET next_position = next_position + 1 + $12, updated_at = $13
    FROM owner WHERE sessions.id = owner.session_id AND $11 RETURNING next_position - 1 - $12 AS position),
kept_iteration AS (
  INSERT INTO iterations (run_id, iteration, message_id, reply, model_calls, created_at)
  SELECT owner.id, $3, $6, $4, $5, $13 FROM owner
  ON CONFLICT (run_id, iteration) DO UPDATE SET reply = excluded.reply,
     model_calls = iterations.model_calls || excluded.model_calls),
kept_message AS (
  INSERT INTO messages (id, session_id, run_id, position, role, content, tool_calls, tokens, created_at)
  SELECT $6, owner.session_id, owner.id, place.position, 'assistant', $7, $8, $16, $13 FROM owner, place),
kept_calls AS (
  INSERT INTO tool_calls (id, run_id, iteration, index, position, tool, arguments, raw_arguments, provider_id, native,
                          truncated)
  SELECT c.id, owner.id, $3, c.index, place.position + 1 + c.index, c.tool, c.arguments, c.raw_arguments, c.provider_id,
         c.native, false
    FROM owner LEFT JOIN place ON true, jsonb_to_recordset($9::jsonb) AS c(
      id text, index int, tool text, arguments jsonb, raw_arguments text, provider_id text, native jsonb)),
spent AS ({recorded("owner", "'run'", "$4::jsonb->>'model'", "$10::jsonb")}),
kept_events AS ({_KEEP_EVENTS.format(events="$14::jsonb")})
SELECT owner.id, place.position FROM owner LEFT JOIN place ON true
"""

# $1 run_id, $2 claim, $3 iteration, $4 message_id, $5 model_calls, $6 created_at: a model call that gave no reply; kept
# once, also when it comes again since nobody knows whether it was stored
FAILURE = """
WITH owner AS (
  UPDATE runs SET iterations = $3 WHERE id = $1 AND claim = $2 AND status = 'running' RETURNING id)
INSERT INTO iterations (run_id, iteration, message_id, reply, model_calls, created_at)
SELECT owner.id, $3, $4, NULL, $5, $6 FROM owner
ON CONFLICT (run_id, iteration) DO UPDATE SET model_calls = iterations.model_calls || CASE
  WHEN iterations.model_calls @> excluded.model_calls THEN '[]' ELSE excluded.model_calls END
RETURNING run_id
"""

# $1 run_id, $2 claim, $3 answers (JSON array), $4 message ids by call, $5 answered_at, $6 events
ANSWER = f"""
WITH owner AS (
  SELECT id, session_id FROM runs WHERE id = $1 AND claim = $2 AND status IN ('running', 'waiting') FOR NO KEY UPDATE),
answered AS (
  UPDATE tool_calls SET result = a.result, content = a.content, truncated = a.truncated, outcome = a.outcome,
         hint_streak = a.hint_streak, status = a.status, cause = a.cause, seconds = a.seconds, attempts = a.attempts,
         tokens = a.tokens, answered_at = $5
    FROM owner, jsonb_to_recordset($3::jsonb) AS a(
      id text, result jsonb, content text, truncated boolean, outcome text, hint_streak int, status int, cause text,
      seconds float8, attempts int, tokens bigint)
   WHERE tool_calls.id = a.id AND tool_calls.run_id = owner.id AND tool_calls.answered_at IS NULL
  RETURNING tool_calls.id, tool_calls.position, tool_calls.content),
kept_message AS (
  INSERT INTO messages (id, session_id, run_id, position, role, content, tool_call_id, created_at)
  SELECT $4::jsonb->>answered.id, owner.session_id, owner.id, answered.position, 'tool', answered.content, answered.id, $5
    FROM owner, answered WHERE answered.position IS NOT NULL),
kept_events AS ({_KEEP_EVENTS.format(events="$6::jsonb")})
SELECT id FROM owner
"""

# $1 run_id, $2 claim, $3 call_id, $4 reason, $5 seconds it may take: a call waits for something outside
WAIT_FOR = """
WITH owner AS (
  SELECT id FROM runs WHERE id = $1 AND claim = $2 AND status = 'running' FOR NO KEY UPDATE)
UPDATE tool_calls SET pending_reason = $4, expires_at = now() + make_interval(secs => $5)
  FROM owner WHERE tool_calls.id = $3 AND tool_calls.run_id = owner.id
RETURNING expires_at
"""

# $1 run_id, $2 claim, $3 call_id: a call that must not be sent twice is about to be sent; no row: an earlier owner sent it
SENDING = """
WITH owner AS (
  SELECT id, claimed_at FROM runs WHERE id = $1 AND claim = $2 AND status = 'running' FOR NO KEY UPDATE)
UPDATE tool_calls SET sent_at = now() FROM owner
 WHERE tool_calls.id = $3 AND tool_calls.run_id = owner.id
   AND (tool_calls.sent_at IS NULL OR tool_calls.sent_at >= owner.claimed_at)
RETURNING tool_calls.id
"""

_AS_IT_WAITS = """jsonb_build_object('status', owner.status, 'pending', owner.pending, 'iterations', owner.iterations,
 'tool_calls', owner.tool_calls, 'input_tokens', owner.input_tokens, 'output_tokens', owner.output_tokens,
 'cached_tokens', owner.cached_tokens, 'reasoning_tokens', owner.reasoning_tokens)"""

# $1 run_id, $2 claim, $3 pending, $4 events, $5 the seq of the last one: the run waits, and belongs to nobody
SUSPEND = f"""
WITH owner AS (
  UPDATE runs SET status = 'waiting', claim = NULL, lease_expires_at = NULL, pending = $3, claimed_at = NULL,
         reserved_seq = $5,
         worked_seconds = worked_seconds + extract(epoch FROM now() - claimed_at)::float8,
         wake_at = now() + interval '10 seconds'
   WHERE id = $1 AND claim = $2 AND status = 'running' RETURNING *),
kept_events AS ({_KEEP_EVENTS.format(events="$4::jsonb")}),
told AS ({told("ARRAY['run.waiting']", _AS_IT_WAITS)})
SELECT owner.*, NULL::text AS next_run_id, (SELECT count(*) FROM told) AS told FROM owner
"""

# $1 run_id, $2 claim, $3 events, $4 reserved seq: how a new owner begins
BEGIN = f"""
WITH owner AS (
  UPDATE runs SET reserved_seq = greatest(reserved_seq, $4)
   WHERE id = $1 AND claim = $2 AND status = 'running' RETURNING id),
kept_events AS ({_KEEP_EVENTS.format(events="$3::jsonb")})
SELECT id FROM owner
"""

# $1 run_id: what a statement left whose answer was lost, behind the lock that it may still have
LOCKED = """
SELECT *, (SELECT next.id FROM runs AS next WHERE next.session_id = runs.session_id AND next.status = 'queued'
            ORDER BY next.id LIMIT 1) AS next_run_id
  FROM runs WHERE id = $1 FOR UPDATE
"""

# $1 run_id, $2 claim, $3 the memories that are sent
REMEMBERED = "UPDATE runs SET memories = $3 WHERE id = $1 AND claim = $2"

# $1 run_id, $2 claim, $3 message_id, $4 content, $5 created_at, $6 persist, $7 events, $8 tokens of the content
SAY = f"""
WITH owner AS (
  SELECT id, session_id FROM runs WHERE id = $1 AND claim = $2 AND status = 'running' FOR NO KEY UPDATE),
place AS (
  UPDATE sessions SET next_position = next_position + 1, updated_at = $5 FROM owner
   WHERE sessions.id = owner.session_id AND $6 AND NOT EXISTS (SELECT 1 FROM messages WHERE id = $3)
  RETURNING next_position - 1 AS position),
kept_message AS (
  INSERT INTO messages (id, session_id, run_id, position, role, content, tokens, created_at)
  SELECT $3, owner.session_id, owner.id, place.position, 'assistant', $4, $8, $5 FROM owner, place),
kept_events AS ({_KEEP_EVENTS.format(events="$7::jsonb")})
SELECT owner.id, place.position FROM owner LEFT JOIN place ON true
"""

# $1 run_id, $2 claim, $3 status, $4 finish_reason, $5 output, $6 output_parsed, $7 error_code, $8 error_message,
# $9 last_seq, $10 answers of open calls, $11 their message ids, $12 finished_at, $13 events
FINISH = f"""
WITH owner AS (
  UPDATE runs SET status = $3, finish_reason = $4, output = $5, output_parsed = $6, error_code = $7, error_message = $8,
         last_seq = $9, finished_at = $12, claim = NULL, lease_expires_at = NULL, pending = NULL, wake_at = NULL
   WHERE id = $1 AND claim = $2 AND status IN ('queued', 'running', 'waiting') RETURNING *),
rolled_up AS (
  UPDATE runs SET input_tokens = runs.input_tokens + owner.input_tokens,
         output_tokens = runs.output_tokens + owner.output_tokens,
         cached_tokens = runs.cached_tokens + owner.cached_tokens,
         reasoning_tokens = runs.reasoning_tokens + owner.reasoning_tokens
    FROM owner WHERE runs.id = owner.parent_run_id AND runs.status IN ('running', 'waiting')),
answered AS (
  UPDATE tool_calls SET result = a.result, content = a.content, outcome = a.outcome, seconds = 0, attempts = 0,
         answered_at = $12
    FROM owner, jsonb_to_recordset($10::jsonb) AS a(id text, result jsonb, content text, outcome text)
   WHERE tool_calls.id = a.id AND tool_calls.run_id = owner.id AND tool_calls.answered_at IS NULL
  RETURNING tool_calls.id, tool_calls.position, tool_calls.content),
kept_message AS (
  INSERT INTO messages (id, session_id, run_id, position, role, content, tool_call_id, created_at)
  SELECT $11::jsonb->>answered.id, owner.session_id, owner.id, answered.position, 'tool', answered.content, answered.id, $12
    FROM owner, answered WHERE answered.position IS NOT NULL),
kept_events AS ({_KEEP_EVENTS.format(events="$13::jsonb")}),
told AS ({told("ARRAY['run.' || owner.status, 'usage.recorded']")})
SELECT owner.*, (SELECT count(*) FROM told) AS told, (
    SELECT next.id FROM runs AS next WHERE next.session_id = owner.session_id AND next.status = 'queued'
     ORDER BY next.id LIMIT 1) AS next_run_id
  FROM owner
"""
