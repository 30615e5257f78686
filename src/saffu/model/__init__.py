"""The public interface, `SaffuLM`, and the life of a model on disk."""
