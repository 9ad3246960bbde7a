"""Cases made from the schema, the doors they are brought to, and the corpus of those that once failed."""
