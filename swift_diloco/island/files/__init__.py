"""Keep: the sync record beside a trainer checkpoint. They decide nothing and know no link."""
