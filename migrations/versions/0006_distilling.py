"""Who draws notes from a session, and which sessions are due."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("distil_claim", sa.String(), nullable=True))
    op.create_index(
        "sessions_undistilled", "sessions", ["updated_at"],
        postgresql_where=sa.text("next_position > distilled_position + 1"),
    )  # fmt: skip
    op.create_index(
        "distillations_due", "distillations", ["next_attempt_at"], postgresql_where=sa.text("status = 'due'"),
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("distillations_due", table_name="distillations")
    op.drop_index("sessions_undistilled", table_name="sessions")
    op.drop_column("sessions", "distil_claim")
