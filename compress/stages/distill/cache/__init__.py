"""Teacher cache: teacher outputs on disk, computed once per (teacher, data, layout), read by all epochs and students.

    PATH/task or PATH/corpus/
      cache.json                            whose answers, to what
      fields/<what>-<bits>bit/shard-00000/  rows 0 .. R-1, with a manifest; <what> is logits, hidden-3, queries-5 …
      fields/<what>-<bits>bit/shards.json   rows, sizes and digests of all shards
      fidelity/<what>-<bits>bit.json        how near they are to the live teacher's

A field is one tensor of an `EncoderOutput`. What a stage's objectives declare in their `teacher_needs` is kept, and
nothing else; a student that needs another field of the same teacher and data adds it to the same folder. Shards are
written whole or not at all, so filling that was stopped goes on with those that are missing, in one process or several.
"""
