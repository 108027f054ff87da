"""What an agent that was used as a tool has spent, kept with its result."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tool_calls", sa.Column("tokens", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tool_calls", "tokens")
