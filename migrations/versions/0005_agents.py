"""Agents, their firings and day counts; runs that start later, that events join, and how deep events caused them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("tenant_type", sa.String(), nullable=True),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("system_prompt", sa.String(), nullable=False),
        sa.Column("model", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("event_triggers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("cron", sa.String(), nullable=True),
        sa.Column("timezone", sa.String(), nullable=False),
        sa.Column("input", sa.String(), nullable=True),
        sa.Column("allowed_tools", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("max_tasks_per_day", sa.Integer(), nullable=False),
        sa.Column("debounce_seconds", sa.Float(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("history", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("memory", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("redaction", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("config", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("cron_after", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cron_run_id", sa.String(), nullable=True),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("workspace_id", "name", name="agents_workspace_name"),
    )
    op.create_index("agents_by_workspace", "agents", ["workspace_id", "id"], unique=False)
    op.create_index(
        "agents_due", "agents", ["next_at"], unique=False, postgresql_where=sa.text("active AND next_at IS NOT NULL")
    )
    op.create_table(
        "agent_days",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("tenant_type", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent_id", "tenant_type", "tenant_id", "day"),
    )
    op.create_table(
        "firings",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=True),
        sa.Column("slot", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tenant_type", sa.String(), nullable=True),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("subject_type", sa.String(), nullable=True),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("member_type", sa.String(), nullable=True),
        sa.Column("member_id", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("detail", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("cause_run_id", sa.String(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("firings_by_agent", "firings", ["agent_id", "id"], unique=False)
    op.create_index("firings_by_time", "firings", ["at"], unique=False)
    op.create_index(
        "firings_slot", "firings", ["agent_id", "slot"], unique=True, postgresql_where=sa.text("slot IS NOT NULL")
    )
    op.add_column("runs", sa.Column("join_key", sa.String(), nullable=True))
    op.add_column("runs", sa.Column("depth", sa.Integer(), server_default="0", nullable=False))
    op.create_index(
        "runs_by_agent", "runs", ["agent_id", "id"], unique=False, postgresql_where=sa.text("agent_id IS NOT NULL")
    )
    op.create_index(
        "runs_by_parent", "runs", ["parent_run_id"], unique=False, postgresql_where=sa.text("parent_run_id IS NOT NULL")
    )
    op.create_index(
        "runs_joinable",
        "runs",
        ["join_key"],
        unique=True,
        postgresql_where=sa.text(
            "status = 'queued' AND claim IS NULL AND cancel_requested_at IS NULL AND join_key IS NOT NULL"
        ),
    )


def downgrade() -> None:
    op.drop_index(
        "runs_joinable",
        table_name="runs",
        postgresql_where=sa.text(
            "status = 'queued' AND claim IS NULL AND cancel_requested_at IS NULL AND join_key IS NOT NULL"
        ),
    )
    op.drop_index("runs_by_parent", table_name="runs", postgresql_where=sa.text("parent_run_id IS NOT NULL"))
    op.drop_index("runs_by_agent", table_name="runs", postgresql_where=sa.text("agent_id IS NOT NULL"))
    op.drop_column("runs", "depth")
    op.drop_column("runs", "join_key")
    op.drop_index("firings_slot", table_name="firings", postgresql_where=sa.text("slot IS NOT NULL"))
    op.drop_index("firings_by_time", table_name="firings")
    op.drop_index("firings_by_agent", table_name="firings")
    op.drop_table("firings")
    op.drop_table("agent_days")
    op.drop_index("agents_due", table_name="agents", postgresql_where=sa.text("active AND next_at IS NOT NULL"))
    op.drop_index("agents_by_workspace", table_name="agents")
    op.drop_table("agents")
