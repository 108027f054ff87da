"""Vaults of redaction, and which runs and sessions have one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "vault_keys",
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("session_id", sa.Text(), nullable=True),
        sa.Column("tenant_type", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("subject_type", sa.String(), nullable=True),
        sa.Column("subject_id", sa.String(), nullable=True),
        sa.Column("member_type", sa.String(), nullable=True),
        sa.Column("member_id", sa.String(), nullable=True),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner"),
    )
    op.create_index("vault_keys_by_session", "vault_keys", ["session_id"], unique=False)
    op.create_index("vault_keys_by_tenant", "vault_keys", ["workspace_id", "tenant_type", "tenant_id"], unique=False)
    op.create_table(
        "vault_entries",
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("variant", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["owner"], ["vault_keys.owner"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("owner", "label", "number", "variant"),
    )
    op.create_index("vault_entries_by_digest", "vault_entries", ["owner", "label", "digest"], unique=True)
    op.add_column("sessions", sa.Column("has_vault", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("runs", sa.Column("vault", sa.String(), nullable=True))
    op.create_index("runs_by_vault", "runs", ["vault"], unique=False, postgresql_where=sa.text("vault IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("runs_by_vault", table_name="runs")
    op.drop_column("runs", "vault")
    op.drop_column("sessions", "has_vault")
    op.drop_table("vault_entries")
    op.drop_table("vault_keys")
