"""Rules, memories, and what is drawn from sessions."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# the three axes as one key: short enough for an index however long they are, and made by the database alone
SCOPE_HASH = """
CREATE FUNCTION scope_hash(
  tenant_type text, tenant_id text, subject_type text, subject_id text, member_type text, member_id text)
RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT sha256(convert_to(
    jsonb_build_array(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)::text, 'UTF8'))
$$
"""

# what applies to a scope: what its tenant, its subject, its member, and the two together have
SCOPES_APPLYING = """
CREATE FUNCTION scopes_applying(
  tenant_type text, tenant_id text, subject_type text, subject_id text, member_type text, member_id text)
RETURNS bytea[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT ARRAY[
    scope_hash(tenant_type, tenant_id, NULL, NULL, NULL, NULL),
    scope_hash(tenant_type, tenant_id, subject_type, subject_id, NULL, NULL),
    scope_hash(tenant_type, tenant_id, NULL, NULL, member_type, member_id),
    scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)]
$$
"""

# how alike words are to texts by their trigrams, 0 to 1 for each text; NULL where the server has no pg_trgm
LIKENESS = """
CREATE FUNCTION likeness(words text[], texts text[])
RETURNS real[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  found real[];
BEGIN
  IF to_regprocedure('word_similarity(text,text)') IS NULL THEN
    RETURN NULL;
  END IF;
  EXECUTE 'SELECT array_agg((SELECT avg(word_similarity(word, t.content)) FROM unnest($1) AS word)::real ORDER BY t.number)'
    ' FROM unnest($2) WITH ORDINALITY AS t(content, number)' INTO found USING words, texts;
  RETURN found;
END
$$
"""

# optional: where it is on board and may be installed
PG_TRGM = """
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm') THEN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
  END IF;
EXCEPTION WHEN insufficient_privilege THEN
  NULL;
END
$$
"""


def upgrade() -> None:
    for statement in (PG_TRGM, SCOPE_HASH, SCOPES_APPLYING, LIKENESS):
        op.execute(statement)
    op.create_table(
        "memory_events",
        sa.Column("id", sa.BIGINT(), sa.Identity(always=True), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("memory_id", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("before", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("after", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_memory_events_workspace_id"), "memory_events", ["workspace_id"], unique=False)
    op.create_index("memory_events_by_memory", "memory_events", ["memory_id", "id"], unique=False)
    op.create_table(
        "memory_tombstones",
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column(
            "scope_hash",
            sa.LargeBinary(),
            sa.Computed(
                "scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)", persisted=True
            ),
            nullable=False,
        ),
        sa.Column("norm_hash", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_type", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("subject_type", sa.String(), nullable=True),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("member_type", sa.String(), nullable=True),
        sa.Column("member_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(subject_type IS NULL) = (subject_id IS NULL) AND (member_type IS NULL) = (member_id IS NULL)",
            name="memory_tombstones_axes_paired",
        ),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("workspace_id", "scope_hash", "norm_hash"),
    )
    op.create_index(
        "memory_tombstones_by_tenant", "memory_tombstones", ["workspace_id", "tenant_type", "tenant_id"], unique=False
    )
    op.create_table(
        "rules",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("tenant_type", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("subject_type", sa.String(), nullable=True),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("member_type", sa.String(), nullable=True),
        sa.Column("member_id", sa.String(), nullable=True),
        sa.Column(
            "scope_hash",
            sa.LargeBinary(),
            sa.Computed(
                "scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)", persisted=True
            ),
            nullable=False,
        ),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(subject_type IS NULL) = (subject_id IS NULL) AND (member_type IS NULL) = (member_id IS NULL)",
            name="rules_axes_paired",
        ),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "rules_active", "rules", ["workspace_id", "scope_hash"], unique=False, postgresql_where=sa.text("active")
    )
    op.create_index("rules_by_tenant", "rules", ["workspace_id", "tenant_type", "tenant_id", "id"], unique=False)
    op.create_index("rules_by_workspace", "rules", ["workspace_id", "id"], unique=False)
    op.create_table(
        "distillations",
        sa.Column("id", sa.BIGINT(), sa.Identity(always=True), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("from_position", sa.Integer(), nullable=False),
        sa.Column("to_position", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("dropped", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("session_id", "from_position", name="distillations_one_per_range"),
    )
    op.create_table(
        "memories",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("tenant_type", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("subject_type", sa.String(), nullable=True),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("member_type", sa.String(), nullable=True),
        sa.Column("member_id", sa.String(), nullable=True),
        sa.Column(
            "scope_hash",
            sa.LargeBinary(),
            sa.Computed(
                "scope_hash(tenant_type, tenant_id, subject_type, subject_id, member_type, member_id)", persisted=True
            ),
            nullable=False,
        ),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("norm", sa.String(), nullable=False),
        sa.Column("norm_hash", sa.LargeBinary(), nullable=False),
        sa.Column(
            "words",
            postgresql.TSVECTOR(),
            sa.Computed("to_tsvector('simple'::regconfig, norm)", persisted=True),
            nullable=True,
        ),
        sa.Column("importance", sa.Integer(), nullable=False),
        sa.Column("evidence_count", sa.Integer(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("superseded_by", sa.Text(), nullable=True),
        sa.Column("supersedes", sa.Text(), nullable=True),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=True),
        sa.Column("valid_to", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_confirmed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("invalidated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("distillation_id", sa.BIGINT(), nullable=True),
        sa.CheckConstraint(
            "(subject_type IS NULL) = (subject_id IS NULL) AND (member_type IS NULL) = (member_id IS NULL)",
            name="memories_axes_paired",
        ),
        sa.CheckConstraint("importance BETWEEN 1 AND 5", name="memories_importance"),
        sa.ForeignKeyConstraint(["distillation_id"], ["distillations.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["superseded_by"], ["memories.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["supersedes"], ["memories.id"], ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_memories_distillation_id"), "memories", ["distillation_id"], unique=False)
    op.create_index("memories_by_tenant", "memories", ["workspace_id", "tenant_type", "tenant_id", "id"], unique=False)
    op.create_index(
        "memories_by_importance",
        "memories",
        [
            "workspace_id",
            "scope_hash",
            sa.text("pinned DESC"),
            sa.text("importance DESC"),
            sa.text("last_confirmed_at DESC"),
        ],
        unique=False,
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_index("memories_by_workspace", "memories", ["workspace_id", "id"], unique=False)
    op.create_index(
        "memories_living",
        "memories",
        ["workspace_id", "scope_hash"],
        unique=False,
        postgresql_where=sa.text("status IN ('active', 'pending')"),
    )
    op.create_index(
        "memories_one_active",
        "memories",
        ["workspace_id", "scope_hash", "norm_hash"],
        unique=True,
        postgresql_where=sa.text("status = 'active'"),
    )
    op.create_index(
        "memories_superseded_by",
        "memories",
        ["superseded_by"],
        unique=False,
        postgresql_where=sa.text("superseded_by IS NOT NULL"),
    )
    op.create_index(
        "memories_supersedes", "memories", ["supersedes"], unique=False, postgresql_where=sa.text("supersedes IS NOT NULL")
    )
    op.create_table(
        "memory_sources",
        sa.Column("memory_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["memory_id"], ["memories.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("memory_id", "session_id", "position"),
    )
    op.create_index(op.f("ix_memory_sources_session_id"), "memory_sources", ["session_id"], unique=False)
    op.add_column("sessions", sa.Column("distilled_position", sa.Integer(), server_default="0", nullable=False))
    op.add_column("sessions", sa.Column("distil_claimed_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("sessions", "distil_claimed_until")
    op.drop_column("sessions", "distilled_position")
    op.drop_index(op.f("ix_memory_sources_session_id"), table_name="memory_sources")
    op.drop_table("memory_sources")
    op.drop_index("memories_supersedes", table_name="memories", postgresql_where=sa.text("supersedes IS NOT NULL"))
    op.drop_index("memories_superseded_by", table_name="memories", postgresql_where=sa.text("superseded_by IS NOT NULL"))
    op.drop_index("memories_one_active", table_name="memories", postgresql_where=sa.text("status = 'active'"))
    op.drop_index("memories_living", table_name="memories", postgresql_where=sa.text("status IN ('active', 'pending')"))
    op.drop_index("memories_by_workspace", table_name="memories")
    op.drop_index("memories_by_importance", table_name="memories", postgresql_where=sa.text("status = 'active'"))
    op.drop_index("memories_by_tenant", table_name="memories")
    op.drop_index(op.f("ix_memories_distillation_id"), table_name="memories")
    op.drop_table("memories")
    op.drop_table("distillations")
    op.drop_index("rules_by_workspace", table_name="rules")
    op.drop_index("rules_by_tenant", table_name="rules")
    op.drop_index("rules_active", table_name="rules", postgresql_where=sa.text("active"))
    op.drop_table("rules")
    op.drop_index("memory_tombstones_by_tenant", table_name="memory_tombstones")
    op.drop_table("memory_tombstones")
    op.drop_index("memory_events_by_memory", table_name="memory_events")
    op.drop_index(op.f("ix_memory_events_workspace_id"), table_name="memory_events")
    op.drop_table("memory_events")
    for name in ("likeness(text[], text[])", "scopes_applying(text, text, text, text, text, text)"):
        op.execute(f"DROP FUNCTION {name}")
    op.execute("DROP FUNCTION scope_hash(text, text, text, text, text, text)")
