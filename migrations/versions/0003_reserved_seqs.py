"""Beyond which seq no event of a run was shown."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("reserved_seq", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "reserved_seq")
