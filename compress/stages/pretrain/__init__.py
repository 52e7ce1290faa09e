"""Stage: pretrain an encoder (masked LM with NSP, SOP or neither, or replaced-token detection)."""
