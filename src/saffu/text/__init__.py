"""Files to documents, documents to token ids."""
