"""Topics and partitions of this broker: metadata image, coordination store, high watermark."""
