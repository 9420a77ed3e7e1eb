"""The live scheduler: informers feed the engine, cycles start on events, plans are carried out."""
