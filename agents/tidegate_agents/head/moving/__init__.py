"""Moving subscribers inside a cluster: sessions, drains, migrations, and their markers."""
