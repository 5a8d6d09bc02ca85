"""Read models: what the controller answers, made of journal records. No HTTP."""
