"""The SQL of memories that is used in several places, and the one statement that finds what could be sent."""

from app.scope import APPLIES_TO_SESSION

ENDED = "(status IN ('active', 'pending') AND least(expires_at, valid_to) <= now())"
"""A note whose time is up, whether or not a write has settled that meanwhile. Every reader asks."""

LIVING = "status = 'active' AND (least(expires_at, valid_to) > now() OR coalesce(expires_at, valid_to) IS NULL)"
"""A note that may be sent."""

STATUS = f"CASE WHEN {ENDED} THEN 'expired' ELSE status END"

_AXES = "tenant_type, tenant_id, subject_type, subject_id, member_type, member_id"

SHOWN = f"""id, {_AXES}, kind, content, importance, evidence_count, pinned, {STATUS} AS status,
 CASE WHEN {ENDED} THEN 'expired' ELSE reason END AS reason, superseded_by, created_at, updated_at,
 last_confirmed_at, expires_at,
 (SELECT max(session_id) FROM memory_sources WHERE memory_id = memories.id) AS source_session_id,
 (SELECT array_agg(m.id ORDER BY m.position) FROM memory_sources AS source
    JOIN messages AS m ON m.session_id = source.session_id AND m.position = source.position
   WHERE source.memory_id = memories.id
     AND source.session_id = (SELECT max(session_id) FROM memory_sources WHERE memory_id = memories.id)
 ) AS source_message_ids"""
"""The columns that the API shows. Of several sessions that a note comes from, the latest."""

IN_SESSION = APPLIES_TO_SESSION

SCOPE_READ, HEAVIEST_READ, COMPARED, FOUND = 1000, 200, 500, 50
"""What one statement looks at: of each scope its most important notes, of those altogether the most important ones that go
on to be weighed, those compared by trigrams; and how many the question's words, and its trigrams, may add."""

_BY_IMPORTANCE = "pinned DESC, importance DESC, last_confirmed_at DESC"

# $1 workspace, $2-$7 the scope, $8 words, $9 the same as prefix queries, $10 how many of the most important beside what is
# found. The scope comes first, by an index, and words only after it. They are weighed by how rare they are among the notes
# of the scope, so that any language's fillers count little. `likeness` is NULL, and its list empty, where the server has no
# trigrams.
CANDIDATES = f"""
WITH living AS MATERIALIZED (
  SELECT note.* FROM (SELECT DISTINCT hash FROM unnest(scopes_applying($2, $3, $4, $5, $6, $7)) AS hash) AS scopes
    CROSS JOIN LATERAL (
      SELECT id, norm, words, pinned, importance, last_confirmed_at FROM memories
       WHERE workspace_id = $1 AND scope_hash = scopes.hash AND {LIVING}
       ORDER BY {_BY_IMPORTANCE} LIMIT {SCOPE_READ}) AS note),
asked AS MATERIALIZED (SELECT term, to_tsquery('simple', term) AS query FROM unnest($9::text[]) AS term),
hits AS MATERIALIZED (SELECT living.id, asked.term FROM asked JOIN living ON living.words @@ asked.query),
rare AS (SELECT term, ln(1 + (SELECT count(*) FROM living)::float8 / count(*)) AS worth FROM hits GROUP BY term),
by_words AS (
  SELECT id, rank() OVER (ORDER BY sum(worth) DESC) AS place FROM hits JOIN rare USING (term) GROUP BY id),
compared AS (
  SELECT array_agg(id) AS ids, likeness($8::text[], array_agg(norm)) AS alike
    FROM (SELECT id, norm FROM living ORDER BY {_BY_IMPORTANCE}, id DESC LIMIT {COMPARED}) AS most
   WHERE cardinality($8::text[]) > 0),
by_likeness AS (
  SELECT t.id, rank() OVER (ORDER BY t.alike DESC) AS place
    FROM compared, unnest(ids, compared.alike) AS t(id, alike) WHERE compared.alike IS NOT NULL AND t.alike > 0.3),
found AS (
  SELECT coalesce(w.id, l.id) AS id, w.place AS word_rank, l.place AS likeness_rank
    FROM (SELECT * FROM by_words ORDER BY place, id DESC LIMIT {FOUND}) AS w
    FULL JOIN (SELECT * FROM by_likeness ORDER BY place, id DESC LIMIT {FOUND}) AS l ON l.id = w.id),
wanted AS (
  SELECT id FROM found UNION (SELECT id FROM living ORDER BY {_BY_IMPORTANCE}, id DESC LIMIT $10))
SELECT {{columns}}, word_rank, likeness_rank,
       extract(epoch FROM now() - last_confirmed_at)::float8 / 86400 AS days_since_confirmed
  FROM memories LEFT JOIN found USING (id) WHERE id = ANY((SELECT array_agg(id) FROM wanted)::text[])
"""

CANDIDATE = f"id, {_AXES}, kind, content, importance, evidence_count, pinned, created_at"
"""The columns that ranking needs."""
