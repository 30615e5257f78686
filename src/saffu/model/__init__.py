"""The public interface, `SaffuLM`, and model folders on disk."""
