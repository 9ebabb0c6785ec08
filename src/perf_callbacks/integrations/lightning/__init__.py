"""The Lightning `Trainer` of both trees."""
