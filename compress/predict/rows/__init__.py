"""Many rows of files: read, answered in batches, and divided into shards that several processes answer."""
