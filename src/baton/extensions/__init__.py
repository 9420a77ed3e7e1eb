"""User extensions: how Baton finds and loads code that users add without changing Baton."""
