"""Summaries of sessions, the tokens of messages, and the memories that a run was sent."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "compressions",
        sa.Column("session_id", sa.Text(), nullable=False),
        sa.Column("summary", sa.String(), nullable=True),
        sa.Column("summary_tokens", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("through_position", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("options", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claim", sa.String(), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("resting_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("compressed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_index(
        "compressions_due", "compressions", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL")
    )
    op.add_column("messages", sa.Column("tokens", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("memories", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True))
