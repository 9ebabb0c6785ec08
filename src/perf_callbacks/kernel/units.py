"""Units in which figures are recorded and shown, in bytes, seconds and FLOPs per second."""

NANOSECOND = 1e-9
MICROSECOND = 1e-6
HOUR_SECONDS = 3600.0
DAY_SECONDS = 86400.0
MB = 1e6
GB = 1e9
TERA = 1e12
