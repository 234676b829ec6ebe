"""Making a broker process visible: HTTP, logs, metrics, telemetry."""
